package families

import (
	"fmt"

	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/model/recurrent"
)

// Falcon-H1 (TII, arXiv 2507.22448). Each layer has Mamba-2 (recurrent/mamba2.go) and attention side by side,
// with many multipliers:
//
//	x  = embedding[token] * embedding_multiplier
//	h  = RMSNorm(x)
//	x += ssm_out * Mamba2(ssm_in * h) + attention_out * attention(attention_in * h)    keys times key_multiplier
//	h  = RMSNorm(x)
//	x += mlp_1 * Down (SiLU(mlp_0 * Gate h) * Up h)
//	logits = lm_head_multiplier * Head RMSNorm(x, Norm)
//
// ssm_multipliers multiply z, x, B, C and dt after the projection. Two layers here are one of the files:
// the first has Mamba-2 and no FFN, the second has attention, which reads the same norm, and the FFN.
// Sums are therefore (x + Mamba2) + attention. In GGUF files the converter has multiplied the weights.
func init() {
	model.Register(model.Family{
		Name: FalconH1,
		Tiny: map[string]any{"num_attention_heads": 4, "num_key_value_heads": 2, "mamba_d_ssm": 32,
			"mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8,
			"attention_in_multiplier": 0.5, "ssm_multipliers": []float64{0.5, 2, 1, 1, 3}, "mlp_multipliers": []float64{0.7, 2}},
		Defaults: map[string]string{"vocab_size": "128000", "hidden_size": "4096", "intermediate_size": "14336",
			"num_hidden_layers": "32", "num_attention_heads": "32",
			"num_key_value_heads": "8", "rms_norm_eps": "1e-5", "max_position_embeddings": "8192"},
		Read: readFalconH1, Layer: falconH1Layer, Extra: model.DecoderExtra,
		Rename: func(_ *model.Config, name string) string {
			if name == "model.final_layernorm.weight" {
				return model.FinalNorm
			}
			return name
		},
	})
}

const FalconH1 = "FalconH1ForCausalLM"

func readFalconH1(f *model.Fields, c *model.Config) {
	if c.Layers *= 2; c.Layers > model.MaxLayers {
		f.Refuse("num_hidden_layers", "%d: at most %d layers with attention and Mamba-2 are implemented", c.Layers/2, model.MaxLayers/2)
	}
	readLlama(f, c)
	for _, key := range []string{"mamba_proj_bias", "projectors_bias"} {
		f.MustBe(key, false)
	}
	f.MustBe("mamba_use_mlp", true)
	normed := f.Bool("mamba_rms_norm", false)
	if normed && f.Bool("mamba_norm_before_gate", true) {
		f.Refuse("mamba_norm_before_gate",
			"true with mamba_rms_norm: a norm of Mamba-2's output before its gate is not implemented; only models with the norm after the gate, "+
				"or without one, run")
	}
	inner := f.Size("mamba_d_ssm", 1024, model.MaxFFN)
	if f.Given("mamba_d_ssm") && !f.Has("mamba_d_ssm") {
		inner = f.Size("mamba_expand", 2, model.MaxHeads) * c.Hidden
	}
	d := &c.Delta
	*d = recurrent.Mixer{
		Kind: recurrent.Mamba2, ValueHeads: f.Size("mamba_n_heads", 128, model.MaxHeads), KeyDim: f.Size("mamba_d_state", 256, model.MaxHeads),
		Taps:   f.Size("mamba_d_conv", 4, model.MaxTaps),
		Groups: f.Size("mamba_n_groups", 1, model.MaxHeads), ConvBias: f.Bool("mamba_conv_bias", true), NoNorm: !normed,
		TimeStep: timeStep(f, "time_step_limit"),
	}
	readMamba(c, f, "mamba_d_head", inner/d.ValueHeads, "mamba_n_heads")
	if d.ValueHeads*d.ValueDim != inner {
		f.Fail("mamba_d_head", model.ErrFormat, "%d heads of width %d are not mamba_d_ssm, %d", d.ValueHeads, d.ValueDim, inner)
	}
	checkMixer(c, f, "num_hidden_layers", func(i int) bool { return i%2 == 1 })
	readFalconFactors(f, c)
}

// readFalconFactors reads the multipliers. Scores are products of queries and keys, so they take
// attention_in twice. Values and so the output take it once.
func readFalconFactors(f *model.Fields, c *model.Config) {
	one := func(key string) float64 { return f.Number(key, 1, 1e-9, 1e9) }
	in := one("attention_in_multiplier")
	if c.QKVBias && in != 1 {
		f.Refuse("attention_bias", "true with attention_in_multiplier %g is not implemented", in)
	}
	scores := in * in * one("key_multiplier")
	c.QueryScale = float64(c.HeadDim) / (scores * scores)
	mlp, ssm := numbers(f, "mlp_multipliers", 2), numbers(f, "ssm_multipliers", 5)
	state := one("ssm_in_multiplier")
	c.Multipliers = model.Multipliers{
		Embedding: factor(one("embedding_multiplier")), Logits: factor(one("lm_head_multiplier")),
		State: factor(one("ssm_out_multiplier")), Attention: factor(in * one("attention_out_multiplier")),
		Gate: factor(mlp[0]), FFN: factor(mlp[1]),
	}
	c.Delta.Factors = recurrent.Factors{Z: factor(state * ssm[0]), X: factor(state * ssm[1]), B: factor(state * ssm[2]),
		C: factor(state * ssm[3]), Dt: factor(state * ssm[4])}
}

// factor returns a multiplier in the form of Multipliers, where 0 counts as 1.
func factor(x float64) float32 {
	if x == 1 {
		return 0
	}
	return float32(x)
}

func falconH1Layer(c *model.Config, i int) model.LayerSpec {
	l := model.DecoderLayer(c, i/2)
	p := fmt.Sprintf("model.layers.%d.", i/2)
	m := &c.Multipliers
	if i%2 == 0 {
		l.Gate, l.Up, l.Down, l.FFNNorm, l.MixFactor = model.Linear{}, model.Linear{}, model.Linear{}, "", m.State
		mambaLayer(c, &l, p+"mamba.")
		return l
	}
	ffn := func(name string) model.Linear { return model.Projection(p+"feed_forward."+name, c.MLPBias) }
	l.AttnNorm, l.SameNorm, l.FFNNorm = "", true, p+"pre_ff_layernorm.weight"
	l.Gate, l.Up, l.Down = ffn("gate_proj"), ffn("up_proj"), ffn("down_proj")
	l.MixFactor, l.GateFactor, l.FFNFactor = m.Attention, m.Gate, m.FFN
	return l
}

// numbers reads a list of n positive numbers. Without the list, each is 1.
func numbers(f *model.Fields, key string, n int) []float64 {
	var all []float64
	if f.Get(key, &all, "a list of numbers") && len(all) != n {
		f.Fail(key, model.ErrFormat, "%d numbers, want %d", len(all), n)
	}
	for len(all) < n {
		all = append(all, 1)
	}
	for _, x := range all {
		if !(x >= 1e-9 && x <= 1e9) {
			f.Fail(key, model.ErrOutOfRange, "%g is outside 1e-9..1e9", x)
		}
	}
	return all
}
