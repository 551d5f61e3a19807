package families

import (
	"fmt"

	"github.com/shoal-llm/shoal/internal/engine/model"
)

// Qwen3.5, 3.6 and 3.8, dense. Most layers have the gated delta rule (delta.go) instead of
// attention; by default every fourth layer has attention. That attention differs from llama.go:
//
//	q_i, g_i = Q_i h                                      (dim), (dim) of each query head
//	q_i, k_j = RoPE(RMSNorm(q_i)), RoPE(RMSNorm(k_j))     the first quarter of a head rotates
//	x       += O [attention(q, k, v) * sigmoid(g)]
//
// Every norm except that of the gated delta rule multiplies by 1 + its weight.
func init() {
	model.Register(model.Family{
		Name: "Qwen3_5ForCausalLM",
		Defaults: map[string]string{"hidden_size": "4096", "intermediate_size": "12288", "num_hidden_layers": "32", "num_attention_heads": "16",
			"num_key_value_heads": "4", "head_dim": "256", "vocab_size": "248320", "max_position_embeddings": "32768"},
		Read:   readQwen35,
		Layer:  qwen35Layer,
		Rotary: []string{model.PartialKey},
	})
}

// In the variant with experts, every layer has routed experts and a shared one. It computes
// y = sigmoid(SharedFactor h) Shared(h) + the sum over the chosen experts of moe.go, whose weights are
// divided by their sum.
func init() {
	model.Register(model.Family{
		Name: "Qwen3_5MoeForCausalLM",
		Defaults: map[string]string{"hidden_size": "2048", "intermediate_size": "512", "num_hidden_layers": "40", "num_attention_heads": "16",
			"num_key_value_heads": "2", "head_dim": "256", "vocab_size": "248320", "max_position_embeddings": "32768"},
		Read: func(f *model.Fields, c *model.Config) {
			readQwen35(f, c)
			readGatedExperts(f, c, 256, 8, nil)
		},
		Layer:  qwen35Layer,
		Rotary: []string{"partial_rotary_factor"},
	})
}

// Qwen3-Next: Qwen3.5 with experts, but some layers may have none. The rows of the projections of
// linear layers are stored by key head.
func init() {
	model.Register(model.Family{
		Name: Qwen3Next,
		Defaults: map[string]string{"hidden_size": "2048", "intermediate_size": "5632", "num_hidden_layers": "48", "num_attention_heads": "16",
			"num_key_value_heads": "2", "head_dim": "256", "vocab_size": "151936", "max_position_embeddings": "32768"},
		Read: func(f *model.Fields, c *model.Config) {
			readQwen35(f, c)
			readGatedExperts(f, c, 512, 10,
				model.DenseLayers(c.Layers, f.Size("decoder_sparse_step", 1, model.MaxLayers), f.Layers("mlp_only_layers", c.Layers)))
			c.MoE.Router.Normalise = f.Bool("norm_topk_prob", true)
		},
		Layer:  qwen35Layer,
		Rotary: []string{"partial_rotary_factor"},
	})
}

const Qwen3Next = "Qwen3NextForCausalLM"

// readGatedExperts reads the experts. all and chosen are the family's default numbers.
func readGatedExperts(f *model.Fields, c *model.Config, all, chosen int, dense []int) {
	c.MoE = model.MoE{
		Experts:  f.Size("num_experts", all, model.MaxExperts),
		PerToken: f.Size("num_experts_per_tok", chosen, model.MaxExperts),
		FFN:      f.Size("moe_intermediate_size", 512, model.MaxFFN),
		Shared:   f.Size("shared_expert_intermediate_size", 512, model.MaxFFN),
		Gated:    true,
		Router:   model.Router{Score: model.Softmax, Normalise: true, Scale: 1},
		Dense:    dense,
	}
	model.CheckMoE(f, c, "num_experts", "num_experts_per_tok", "", "")
}

func readQwen35(f *model.Fields, c *model.Config) {
	f.PlainPositions()
	c.Tied = f.Bool("tie_word_embeddings", false)
	c.QKNorm, c.NormsAddOne, c.OutputGate = true, true, true
	if f.Bool("attention_bias", false) {
		f.Refuse("attention_bias", "true: biases of gated queries are not implemented")
	}
	if !f.Bool("attn_output_gate", true) {
		f.Refuse("attn_output_gate", "false: attention without an output gate is not implemented for this family")
	}
	if kind := f.Text("output_gate_type", "swish"); model.SameActivation[kind] != "silu" && kind != "silu" {
		f.Refuse("output_gate_type", "%q: the output of linear layers is gated by swish here", model.Clip(kind))
	}
	f.ReadActivation("hidden_act", "silu")
	readDelta(f, c)
	c.ReadRotated(f, 0.25)
	model.ReadRope(f, c, 10000)
}

func qwen35Layer(c *model.Config, i int) model.LayerSpec {
	l := model.DecoderLayer(c, i)
	p := fmt.Sprintf("model.layers.%d.", i)
	if e := l.Experts; e != nil {
		gateShared(e, p+"mlp.")
	}
	if c.Recurrent(i) {
		linearLayer(&l, p)
		if d := l.Delta; c.Architecture == Qwen3Next {
			d.QKV, d.Z, d.B, d.A = model.Linear{}, model.Linear{}, model.Linear{}, model.Linear{}
			d.Joint, d.BA = model.Projection(p+"linear_attn.in_proj_qkvz", false), model.Projection(p+"linear_attn.in_proj_ba", false)
		}
		return l
	}
	gatedQuery(c, &l)
	return l
}
