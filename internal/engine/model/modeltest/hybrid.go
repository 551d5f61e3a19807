package modeltest

import (
	"strings"

	"github.com/shoal-llm/shoal/internal/engine/gguf"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/tensor/f32"
)

var (
	lfm2Names = strings.NewReplacer("operator_norm", "attn_norm", ".ffn_norm", ".ffn_norm", "self_attn.out_proj", "attn_output",
		"self_attn.q_layernorm", "attn_q_norm", "self_attn.k_layernorm", "attn_k_norm",
		"feed_forward.w1", "ffn_gate", "feed_forward.w3", "ffn_up", "feed_forward.w2", "ffn_down", "feed_forward.expert_bias", "exp_probs_b.bias",
		"conv.in_proj", "shortconv.in_proj", "conv.conv", "shortconv.conv", "conv.out_proj", "shortconv.out_proj")
	mambaNames = []string{"mamba.in_proj", "ssm_in", "mamba.conv1d", "ssm_conv1d", "mamba.dt_bias", "ssm_dt.bias", "mamba.A_log", "ssm_a",
		"mamba.D", "ssm_d", "mamba.norm", "ssm_norm", "mamba.out_proj", "ssm_out"}

	graniteHybridNames = strings.NewReplacer(append([]string{"shared_mlp.gate_proj", "ffn_gate", "shared_mlp.up_proj", "ffn_up",
		"shared_mlp.output_linear", "ffn_down"}, mambaNames...)...)
	graniteHybridExpertNames = strings.NewReplacer(append([]string{"shared_mlp.gate_proj", "ffn_gate_shexp", "shared_mlp.up_proj",
		"ffn_up_shexp", "shared_mlp.output_linear", "ffn_down_shexp"}, mambaNames...)...)
)

// headCounts sets the number of KV heads of each layer: 0 in those with a state.
func headCounts(g *GGUF, m *model.Config, p string) {
	kv := make([]int32, m.Layers)
	for i := range kv {
		if !m.Recurrent(i) {
			kv[i] = int32(m.KVHeads)
		}
	}
	g.Unset(p + "attention.head_count_kv")
	g.Set(p+"attention.head_count_kv", kv)
}

func lfm2Keys(p string) func(g *GGUF, m *model.Config) {
	return func(g *GGUF, m *model.Config) {
		headCounts(g, m, p)
		g.Set(p+"shortconv.l_cache", m.Delta.Taps)
		if e := m.MoE; e.Experts > 0 {
			g.Set(p+"expert_feed_forward_length", e.FFN)
			g.Set(p+"leading_dense_block_count", len(e.Dense))
			g.Set(p+"expert_gating_func", 2)
		}
	}
}

func graniteHybridKeys(g *GGUF, m *model.Config) {
	const p = "granitehybrid."
	graniteKeys(p)(g, m)
	headCounts(g, m, p)
	g.Set(p+"rope.scaling.finetuned", len(m.Unrotated) == 0)
	mambaKeys(g, m, p)
	if m.MoE.Experts > 0 {
		g.Unset(p + "feed_forward_length")
		g.Set(p+"feed_forward_length", m.MoE.FFN)
		g.Set(p+"expert_shared_feed_forward_length", m.MoE.Shared)
	}
}

func mambaKeys(g *GGUF, m *model.Config, p string) {
	d := &m.Delta
	for key, n := range map[string]int{"conv_kernel": d.Taps, "state_size": d.KeyDim, "group_count": d.Groups, "time_step_rank": d.ValueHeads,
		"inner_size": d.ValueHeads * d.ValueDim} {
		g.Set(p+"ssm."+key, n)
	}
}

// addHybrid writes a tensor of a layer with a state as the converter does. It reports whether name is one.
func addHybrid(g *GGUF, m *model.Config, name string, all []float32) bool {
	d, values := &m.Delta, m.Delta.ValueHeads*m.Delta.ValueDim
	var shape []int
	switch _, part, _ := strings.Cut(strings.TrimPrefix(name, "blk."), "."); part {
	case "ssm_conv1d.weight", "shortconv.conv.weight":
		shape = []int{len(all) / d.Taps, d.Taps}
	case "ssm_a":
		for i, v := range all {
			all[i] = -f32.Exp(v)
		}
		shape = []int{d.ValueHeads, 1}
	case "ssm_d":
		shape = []int{d.ValueHeads, 1}
	case "ssm_norm.weight":
		shape = []int{d.Groups, values / d.Groups}
	default:
		return false
	}
	g.Add(name, gguf.F32, shape, Quantize(gguf.F32, all))
	return true
}
