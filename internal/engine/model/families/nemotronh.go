package families

import (
	"fmt"
	"strings"

	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/model/recurrent"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Nemotron-H and Nemotron 3 (NVIDIA, arXiv 2504.03624). Each block of the files is one of four, after a
// norm:
//
//	M   x += Mamba2 RMSNorm(x)                  recurrent/mamba2.go, a norm over each group
//	*   x += attention RMSNorm(x)               without rotary positions
//	-   x += Down relu(Up h)²,  h = RMSNorm(x)
//	E   x += Shared(h) + sum over chosen e of w_e Down_e relu(Up_e h)²
//
// hybrid_override_pattern has a letter for each block, layers_block_type a name. A mixer and the FFN that
// follows it are one layer here (recurrent.Blocks). The router is DeepSeek V3's (model/moe.go).
//
// In transformers, time_step_min also bounds dt during prefill, but not during decode. NVIDIA's own code, vLLM
// and llama.cpp ignore time_step_min. Shoal follows them: time_step_limit alone bounds dt.
func init() {
	model.Register(model.Family{
		Name: NemotronH,
		Tiny: map[string]any{"num_attention_heads": 4, "num_key_value_heads": 2, "hybrid_override_pattern": "MM-*E", "mamba_num_heads": 4,
			"mamba_head_dim": 8, "ssm_state_size": 8, "n_groups": 2,
			"n_routed_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "moe_shared_expert_intermediate_size": 16,
			"routed_scaling_factor": 2.5, "mlp_hidden_act": "relu2"},
		Defaults: map[string]string{"vocab_size": "131072", "hidden_size": "4096", "intermediate_size": "21504",
			"num_hidden_layers": "1", "num_attention_heads": "32",
			"num_key_value_heads": "8", "head_dim": "128", "max_position_embeddings": "4096"},
		Aliases: map[string]string{"n_routed_experts": "num_local_experts",
			"head_dim": "attention_head_dim", "n_groups": "mamba_n_groups", "conv_kernel": "mamba_d_conv",
			"use_conv_bias": "mamba_conv_bias", "time_step_limit": "mamba_dt_limit"},
		Read: readNemotronH, Layer: nemotronHLayer, Extra: model.DecoderExtra,
		Rename: func(_ *model.Config, name string) string {
			return renamed(renamed(name, "backbone.", "model."), "model.embeddings.", "model.embed_tokens.", "model.norm_f.", "model.norm.")
		},
	})
}

const NemotronH = "NemotronHForCausalLM"

func readNemotronH(f *model.Fields, c *model.Config) {
	c.NormEps = float32(f.Number("layer_norm_epsilon", 1e-5, 1e-12, 0.1))
	c.Tied = f.Bool("tie_word_embeddings", false)
	c.Activation = tensor.ReLUSquared
	f.ReadActivation("mlp_hidden_act", "relu2")
	f.ReadActivation("mamba_hidden_act", "silu")
	for _, key := range []string{"use_bias", "attention_bias", "mlp_bias", "mamba_proj_bias"} {
		f.MustBe(key, false)
	}
	for _, key := range []string{"sliding_window", "moe_latent_size"} {
		if f.Has(key) {
			f.Refuse(key, "is set: %s is not implemented for this family; leave it out or null", map[string]string{
				"sliding_window":  "a window of attention",
				"moe_latent_size": "a narrower input of the experts (latent experts, as in Nemotron 3 Super and Ultra)"}[key])
		}
	}
	key, pattern := readPattern(f)
	blocks, err := recurrent.Blocks(pattern)
	if err != nil {
		f.Refuse(key, "%v", err)
		return
	}
	if c.Layers = len(blocks); len(pattern) > model.MaxLayers {
		f.Refuse(key, "%d blocks, more than %d", len(pattern), model.MaxLayers)
		return
	}
	c.Blocks = blocks
	model.ReadRope(f, c, 10000)
	var dense []int
	for i, b := range blocks {
		c.Unrotated = append(c.Unrotated, i)
		if b.FFN < 0 || pattern[b.FFN] != recurrent.ExpertBlock {
			dense = append(dense, i)
		}
	}
	if len(dense) < c.Layers {
		readNemotronExperts(f, c, dense, pattern)
	}
	d := &c.Delta
	*d = recurrent.Mixer{
		Kind: recurrent.Mamba2, ValueHeads: f.Size("mamba_num_heads", 128, model.MaxHeads), KeyDim: f.Size("ssm_state_size", 128, model.MaxHeads),
		Taps:   f.Size("conv_kernel", 4, model.MaxTaps),
		Groups: f.Size("n_groups", 8, model.MaxHeads), ConvBias: f.Bool("use_conv_bias", true), TimeStep: timeStep(f, "time_step_limit"),
	}
	readMamba(c, f, "mamba_head_dim", 64, "mamba_num_heads")
	checkMixer(c, f, key, func(i int) bool { return pattern[blocks[i].Mix] == recurrent.AttentionBlock })
}

// readPattern reads the kinds of blocks, and returns the name of their setting.
func readPattern(f *model.Fields) (key, pattern string) {
	for _, key := range []string{"layers_block_type", "layer_types"} {
		if kinds := names(f, key); kinds != nil {
			pattern, err := recurrent.Pattern(kinds)
			if err != nil {
				f.Refuse(key, "%v", err)
			}
			return key, pattern
		}
	}
	key = "hybrid_override_pattern"
	return key, f.Text(key, "ME*-")
}

func names(f *model.Fields, key string) (list []string) {
	f.Get(key, &list, "a list of names")
	return list
}

func readNemotronExperts(f *model.Fields, c *model.Config, dense []int, pattern string) {
	c.MoE = model.MoE{
		Experts: f.Size("n_routed_experts", 8, model.MaxExperts), PerToken: f.Size("num_experts_per_tok", 2, model.MaxExperts),
		FFN:    f.Size("moe_intermediate_size", 7688, model.MaxFFN),
		Shared: f.Size("moe_shared_expert_intermediate_size", 7688, model.MaxFFN), Ungated: true, Dense: dense,
		Router: model.Router{Score: model.Sigmoid, Bias: true, Normalise: f.Bool("norm_topk_prob", true),
			Scale:  float32(f.Number("routed_scaling_factor", 1, 1e-6, 1e6)),
			Groups: f.Size("n_group", 1, model.MaxHeads), TopGroups: f.Size("topk_group", 1, model.MaxHeads), GroupTop: 2},
	}
	if !strings.ContainsRune(pattern, recurrent.DenseBlock) {
		c.FFN = c.MoE.FFN // the width of dense FFNs sizes nothing
	}
	model.CheckMoE(f, c, "n_routed_experts", "num_experts_per_tok", "n_group", "topk_group")
}

func nemotronHLayer(c *model.Config, i int) model.LayerSpec {
	b := c.Blocks[min(i, len(c.Blocks)-1)]
	p := fmt.Sprintf("model.layers.%d.", b.Mix)
	mixer := func(name string) model.Linear { return model.Projection(p+"mixer."+name, false) }
	l := model.LayerSpec{
		AttnNorm: p + "norm.weight", Q: mixer("q_proj"), K: mixer("k_proj"), V: mixer("v_proj"), O: mixer("o_proj"),
		Rope: c.RopeOf(i), Activation: c.Activation,
	}
	if c.Recurrent(i) {
		mambaLayer(c, &l, p+"mixer.")
	}
	if b.FFN < 0 {
		return l
	}
	p = fmt.Sprintf("model.layers.%d.", b.FFN)
	if l.FFNNorm = p + "norm.weight"; !c.Sparse(i) {
		l.Gate, l.Down = mixer("up_proj"), mixer("down_proj")
		return l
	}
	l.Experts = &model.MoENames{ExpertPrefix: p + "mixer.experts.", GatePart: "up_proj.weight", DownPart: "down_proj.weight"}
	l.Experts.Router, l.Experts.Bias = p+"mixer.gate.weight", p+"mixer.gate.e_score_correction_bias"
	l.Experts.SharedGate, l.Experts.SharedDown = p+"mixer.shared_experts.up_proj.weight", p+"mixer.shared_experts.down_proj.weight"
	return l
}

// renamed replaces the beginning of a name.
func renamed(name string, prefixes ...string) string {
	for i := 0; i < len(prefixes); i += 2 {
		if rest, ok := strings.CutPrefix(name, prefixes[i]); ok {
			return prefixes[i+1] + rest
		}
	}
	return name
}
