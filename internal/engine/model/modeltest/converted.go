package modeltest

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/shoal-llm/shoal/internal/engine/gguf"
	"github.com/shoal-llm/shoal/internal/engine/model"
)

var (
	gemmaNames = strings.NewReplacer("post_attention_layernorm", "post_attention_norm", "pre_feedforward_layernorm", "ffn_norm",
		"post_feedforward_layernorm", "post_ffw_norm")
	deepseekNames = strings.NewReplacer("self_attn.q_a_proj", "attn_q_a", "self_attn.q_a_layernorm",
		"attn_q_a_norm", "self_attn.q_b_proj", "attn_q_b",
		"self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa", "self_attn.kv_a_layernorm", "attn_kv_a_norm", "self_attn.kv_b_proj", "attn_kv_b",
		"mlp.shared_experts.gate_proj", "ffn_gate_shexp", "mlp.shared_experts.up_proj", "ffn_up_shexp",
		"mlp.shared_experts.down_proj", "ffn_down_shexp",
		"mlp.gate.e_score_correction_bias", "exp_probs_b.bias")
)

func windowKey(arch string) func(g *GGUF, m *model.Config) {
	return func(g *GGUF, m *model.Config) {
		if w := m.Window(0); w > 0 {
			g.Set(arch+".attention.sliding_window", w)
		}
	}
}

func gemmaKeys(g *GGUF, m *model.Config) {
	const p = "gemma3."
	pattern := 1
	for i := range m.Layers {
		if w := m.Window(i); w > 0 {
			g.Unset(p + "attention.sliding_window")
			g.Set(p+"attention.sliding_window", w)
		} else if pattern == 1 {
			pattern = i + 1
		}
	}
	g.Set(p+"attention.sliding_window_pattern", pattern) // newer files; default 6
	gemmaScores(g, p, m)
}

func gemma2Keys(g *GGUF, m *model.Config) {
	g.Set("gemma2.attention.sliding_window", m.Window(0))
	gemmaScores(g, "gemma2.", m)
}

func gemmaScores(g *GGUF, p string, m *model.Config) {
	if m.LogitCap != 0 {
		g.Set(p+"final_logit_softcapping", m.LogitCap)
	}
	if m.ScoreCap != 0 {
		g.Set(p+"attn_logit_softcapping", m.ScoreCap)
	}
	if m.QueryScale != float64(m.HeadDim) {
		g.Set(p+"attention.scale", float32(1/math.Sqrt(m.QueryScale)))
	}
}

func cohereKeys(p string) func(g *GGUF, m *model.Config) {
	return func(g *GGUF, m *model.Config) {
		g.Unset(p + "attention.layer_norm_rms_epsilon")
		g.Set(p+"attention.layer_norm_epsilon", m.NormEps)
		g.Set(p+"logit_scale", m.Multipliers.Logits)
		if w := m.Window(0); w > 0 {
			g.Set(p+"attention.sliding_window", w)
		}
	}
}

func graniteKeys(p string) func(g *GGUF, m *model.Config) {
	return func(g *GGUF, m *model.Config) {
		g.Set(p+"embedding_scale", m.Multipliers.Embedding)
		g.Set(p+"residual_scale", m.Multipliers.Residual)
		g.Set(p+"logit_scale", 1/m.Multipliers.Logits)
		g.Set(p+"attention.scale", m.AttentionScale())
	}
}

var (
	sharedNames = strings.NewReplacer("mlp.shared_experts.gate_proj", "ffn_gate_shexp", "mlp.shared_experts.up_proj", "ffn_up_shexp",
		"mlp.shared_experts.down_proj", "ffn_down_shexp",
		"mlp.shared_mlp.gate_proj", "ffn_gate_shexp", "mlp.shared_mlp.up_proj", "ffn_up_shexp", "mlp.shared_mlp.down_proj", "ffn_down_shexp",
		"mlp.moe_statics.e_score_correction_bias", "exp_probs_b.bias", "self_attn.query_layernorm", "attn_q_norm",
		"self_attn.key_layernorm", "attn_k_norm")
	glm4MoENames = strings.NewReplacer("post_attention_layernorm", "post_attention_norm",
		"mlp.gate.e_score_correction_bias", "exp_probs_b.bias",
		"mlp.shared_experts.gate_proj", "ffn_gate_shexp", "mlp.shared_experts.up_proj", "ffn_up_shexp",
		"mlp.shared_experts.down_proj", "ffn_down_shexp")
)

var llama4Names = strings.NewReplacer("feed_forward.shared_expert.gate_proj", "ffn_gate_shexp", "feed_forward.shared_expert.up_proj",
	"ffn_up_shexp", "feed_forward.shared_expert.down_proj", "ffn_down_shexp",
	"feed_forward.gate_proj", "ffn_gate", "feed_forward.up_proj", "ffn_up", "feed_forward.down_proj", "ffn_down")

func llama4Keys(g *GGUF, m *model.Config) {
	g.Set("llama4.expert_feed_forward_length", m.MoE.FFN)
	g.Set("llama4.interleave_moe_layer_step", len(m.MoE.Dense)*2/m.Layers+1) // every layer, or every second
}

// expertKeys returns the converter's settings of experts for families that have some of them.
func expertKeys(p string) func(g *GGUF, m *model.Config) {
	return func(g *GGUF, m *model.Config) {
		e := m.MoE
		g.Set(p+"expert_feed_forward_length", e.FFN)
		switch p {
		case "ernie4_5-moe.":
			g.Set(p+"interleave_moe_layer_step", 1)
			g.Set(p+"leading_dense_block_count", len(e.Dense))
			g.Set(p+"expert_shared_count", e.Shared/e.FFN)
			g.Set(p+"expert_shared_feed_forward_length", e.Shared)
		case "hunyuan-moe.":
			g.Set(p+"expert_shared_count", e.Shared/e.FFN)
			g.Set(p+"expert_shared_feed_forward_length", e.Shared)
		case "minimax-m2.":
			g.Set(p+"expert_gating_func", 2)
		case "glm4moe.":
			g.Set(p+"leading_dense_block_count", len(e.Dense))
			g.Set(p+"expert_shared_count", e.Shared/e.FFN)
			g.Set(p+"expert_gating_func", 2)
			g.Set(p+"expert_weights_scale", e.Router.Scale)
			g.Set(p+"expert_weights_norm", e.Router.Normalise)
		}
	}
}

func deepseekKeys(g *GGUF, m *model.Config) {
	const p = "deepseek2."
	l, e := m.Latent, m.MoE
	for _, kv := range []struct {
		key string
		n   int
	}{{"attention.kv_lora_rank", l.Rank}, {"attention.key_length", l.Rank + l.Rope}, {"attention.value_length", l.Rank},
		{"attention.key_length_mla", l.Nope + l.Rope}, {"attention.value_length_mla", l.Value}, {"rope.dimension_count", l.Rope},
		{"leading_dense_block_count", len(e.Dense)}} {
		g.Set(p+kv.key, kv.n)
	}
	if l.QueryRank > 0 {
		g.Set(p+"attention.q_lora_rank", l.QueryRank)
	}
	if e.Experts > 0 {
		g.Set(p+"expert_feed_forward_length", e.FFN)
		g.Set(p+"expert_shared_count", e.Shared/e.FFN)
		g.Set(p+"expert_weights_scale", e.Router.Scale)
		score := 1
		if e.Router.Score == model.Sigmoid {
			score = 2
		}
		g.Set(p+"expert_gating_func", score)
		if e.Router.Normalise {
			g.Set(p+"expert_weights_norm", true)
		}
		if e.Router.Groups > 0 {
			g.Set(p+"expert_group_count", e.Router.Groups)
			g.Set(p+"expert_group_used_count", e.Router.TopGroups)
		}
	}
	if r := m.Rope; r.Type == "yarn" {
		g.Set(p+"rope.scaling.type", "yarn")
		g.Set(p+"rope.scaling.factor", float32(r.Factor))
		g.Set(p+"rope.scaling.original_context_length", r.OriginalMax)
		g.Set(p+"rope.scaling.yarn_log_multiplier", float32(0.1*r.MScaleAll))
		g.Set(p+"rope.scaling.yarn_beta_fast", float32(r.Fast))
		g.Set(p+"rope.scaling.yarn_beta_slow", float32(r.Slow))
	}
}

// addHalves writes KVUp (heads*(nope+value), rank) in two: for each head the rows of keys,
// transposed, and those of values.
func addHalves(g *GGUF, name string, m *model.Config, all []float32, kind gguf.Type) {
	l := m.Latent
	var k, v []float32
	for h := range m.Heads {
		rows := all[h*(l.Nope+l.Value)*l.Rank:][:(l.Nope+l.Value)*l.Rank]
		for c := range l.Rank {
			for r := range l.Nope {
				k = append(k, rows[r*l.Rank+c])
			}
		}
		v = append(v, rows[l.Nope*l.Rank:]...)
	}
	half := kind
	if l.Nope%kind.Block() != 0 {
		half = gguf.F32 // as llama.cpp falls back to a type that fits
	}
	g.Add(name+"k_b.weight", half, []int{m.Heads, l.Rank, l.Nope}, Quantize(half, k))
	g.Add(name+"v_b.weight", kind, []int{m.Heads, l.Value, l.Rank}, Quantize(kind, v))
}

// SameMScale copies a DeepSeek folder with mscale set to mscale_all_dim, as in all published
// models: a GGUF file holds only one of them.
func SameMScale(from, to string) error {
	for _, name := range []string{"config.json", "model.safetensors"} {
		data, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			return err
		}
		if name == "config.json" {
			var config map[string]any
			if err := json.Unmarshal(data, &config); err != nil {
				return err
			}
			scaling, _ := config["rope_scaling"].(map[string]any)
			scaling["mscale"] = scaling["mscale_all_dim"]
			if data, err = json.Marshal(config); err != nil {
				return err
			}
		}
		if err := os.WriteFile(filepath.Join(to, name), data, 0o600); err != nil {
			return err
		}
	}
	return nil
}

func gptOssKeys(g *GGUF, m *model.Config) {
	const p = "gpt-oss."
	g.Set(p+"expert_feed_forward_length", m.MoE.FFN)
	g.Set(p+"attention.sliding_window", m.Window(0))
	g.Set(p+"rope.scaling.type", "yarn")
	g.Set(p+"rope.scaling.factor", float32(m.Rope.Factor))
	g.Set(p+"rope.scaling.original_context_length", m.Rope.OriginalMax)
}

func mistral3Keys(g *GGUF, m *model.Config) {
	g.Set("mistral3.rope.scaling.type", "yarn")
	for key, v := range map[string]float64{"rope.scaling.factor": m.Rope.Factor, "rope.scaling.yarn_beta_fast": m.Rope.Fast,
		"rope.scaling.yarn_beta_slow":      m.Rope.Slow,
		"rope.scaling.yarn_log_multiplier": m.Rope.MScaleAll, "attention.temperature_scale": float64(m.Growth.Beta)} {
		g.Set("mistral3."+key, float32(v))
	}
	g.Set("mistral3.rope.scaling.original_context_length", m.Rope.OriginalMax)
}

// phi3Keys writes the window and the two lists of longrope.
func phi3Keys(g *GGUF, m *model.Config) {
	windowKey("phi3")(g, m)
	if !m.ByContext() {
		return
	}
	g.Set("phi3.rope.scaling.attn_factor", float32(m.Rope.Amplitude))
	g.Set("phi3.rope.scaling.original_context_length", m.Rope.OriginalMax)
	for name, list := range map[string][]float64{"rope_factors_short.weight": m.Rope.Short, "rope_factors_long.weight": m.Rope.Long} {
		values := make([]float32, len(list))
		for i, v := range list {
			values[i] = float32(v)
		}
		g.Add(name, gguf.F32, []int{len(list)}, Quantize(gguf.F32, values))
	}
}
