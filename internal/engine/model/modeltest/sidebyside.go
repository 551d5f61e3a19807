package modeltest

import (
	"math"
	"strings"

	"github.com/shoal-llm/shoal/internal/engine/model"
)

var (
	falconNames = strings.NewReplacer(append([]string{"pre_ff_layernorm", "ffn_norm", "feed_forward.gate_proj", "ffn_gate",
		"feed_forward.up_proj", "ffn_up", "feed_forward.down_proj", "ffn_down"}, mambaNames...)...)

	nemotronNames = strings.NewReplacer("mixer.in_proj", "ssm_in", "mixer.conv1d", "ssm_conv1d", "mixer.dt_bias", "ssm_dt.bias", "mixer.A_log",
		"ssm_a", "mixer.D", "ssm_d", "mixer.norm", "ssm_norm", "mixer.out_proj", "ssm_out",
		"mixer.q_proj", "attn_q", "mixer.k_proj", "attn_k", "mixer.v_proj", "attn_v", "mixer.o_proj", "attn_output", ".norm.", ".attn_norm.",
		"mixer.gate.e_score_correction_bias", "exp_probs_b.bias",
		"mixer.shared_experts.up_proj", "ffn_up_shexp", "mixer.shared_experts.down_proj", "ffn_down_shexp", "mixer.up_proj",
		"ffn_up", "mixer.down_proj", "ffn_down")
)

// falconKeys: a block has a layer with Mamba-2 and one with attention.
func falconKeys(g *GGUF, m *model.Config) {
	const p = "falcon-h1."
	g.Unset(p + "block_count")
	g.Set(p+"block_count", m.Layers/2)
	mambaKeys(g, m, p)
}

// nemotronKeys: each block has one part of a layer.
func nemotronKeys(g *GGUF, m *model.Config) {
	p := "nemotron_h."
	if m.MoE.Experts > 0 {
		p = "nemotron_h_moe."
	}
	var kv, ffn []int32
	for i, b := range m.Blocks {
		kv, ffn = append(kv, 0), append(ffn, 0)
		if !m.Recurrent(i) {
			kv[b.Mix] = int32(m.KVHeads)
		}
		if b.FFN >= 0 {
			kv, ffn = append(kv, 0), append(ffn, int32(m.FFN))
			if m.Sparse(i) {
				ffn[b.FFN] = int32(m.MoE.FFN)
			}
		}
	}
	for key, v := range map[string]any{"block_count": len(kv), "attention.head_count_kv": kv, "feed_forward_length": ffn} {
		g.Unset(p + key)
		g.Set(p+key, v)
	}
	mambaKeys(g, m, p)
	if e := m.MoE; e.Experts > 0 {
		for key, v := range map[string]any{"expert_feed_forward_length": e.FFN, "expert_shared_feed_forward_length": e.Shared,
			"expert_shared_count": 1, "expert_weights_norm": e.Router.Normalise,
			"expert_weights_scale": e.Router.Scale, "expert_group_count": max(1, e.Router.Groups),
			"expert_group_used_count": max(1, e.Router.TopGroups), "expert_gating_func": 2} {
			g.Set(p+key, v)
		}
	}
}

// multiply multiplies the rows of a matrix by Falcon-H1's multipliers, as the converter does. Those of
// queries and keys are all in the queries.
func multiply(m *model.Config, name string, all []float32, width int) {
	d, f, by := &m.Delta, m.Delta.Factors, m.Multipliers
	rows := func(first, n int, by float32) {
		for i := range all[first*width : (first+n)*width] {
			if by != 0 {
				all[first*width+i] *= by
			}
		}
	}
	n := len(all) / width
	switch part := name[strings.LastIndex(strings.TrimSuffix(strings.TrimSuffix(name, ".weight"), ".bias"), ".")+1:]; part {
	case "attn_q.weight":
		rows(0, n, float32(math.Sqrt(float64(m.HeadDim)/m.QueryScale)))
	case "attn_output.weight":
		rows(0, n, by.Attention)
	case "ssm_out.weight":
		rows(0, n, by.State)
	case "ffn_gate.weight", "ffn_gate.bias":
		rows(0, n, by.Gate)
	case "ffn_down.weight", "ffn_down.bias":
		rows(0, n, by.FFN)
	case "token_embd.weight":
		rows(0, n, by.Embedding)
	case "output.weight":
		rows(0, n, by.Logits)
	case "ssm_in.weight":
		values, groups := d.Values(), d.Groups*d.KeyDim
		first := 0
		for _, section := range []struct {
			n  int
			by float32
		}{{values, f.Z}, {values, f.X}, {groups, f.B}, {groups, f.C}, {d.ValueHeads, f.Dt}} {
			rows(first, section.n, section.by)
			first += section.n
		}
	}
}
