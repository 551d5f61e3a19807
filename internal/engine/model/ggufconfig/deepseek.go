package ggufconfig

import (
	"fmt"
	"math"

	"github.com/shoal-llm/shoal/internal/attempt"
	"github.com/shoal-llm/shoal/internal/engine/model"
)

// DeepSeek V2 and V3 in GGUF, architecture deepseek2. Sigmoid scores identify a V3. Files since 2025
// describe attention as one head of latents (key_length, value_length). The widths of the real heads are
// key_length_mla and value_length_mla, and KVUp is split in two (see joinKVUp).
var deepseekGGUF = map[string]string{
	"attn_q_a": "self_attn.q_a_proj", "attn_q_a_norm": "self_attn.q_a_layernorm", "attn_q_b": "self_attn.q_b_proj",
	"attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa", "attn_kv_a_norm": "self_attn.kv_a_layernorm", "attn_kv_b": "self_attn.kv_b_proj",
	"ffn_gate_shexp": "mlp.shared_experts.gate_proj", "ffn_up_shexp": "mlp.shared_experts.up_proj",
	"ffn_down_shexp":   "mlp.shared_experts.down_proj",
	"exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
}

func (m *metadata) deepseek() {
	m.need("attention.kv_lora_rank", "kv_lora_rank")
	m.set("q_lora_rank", "attention.q_lora_rank", nil) // overwritten by the next line if present
	m.take("attention.q_lora_rank", "q_lora_rank")
	m.heads()
	m.config["num_key_value_heads"] = m.config["num_attention_heads"] // one latent for all heads; files have several values for it
	delete(m.config, "head_dim")
	m.deepseekExperts()
}

// heads reads the widths of a head: rotated part, unrotated part, and value.
func (m *metadata) heads() {
	size := map[string]int64{}
	for _, name := range []string{"rope.dimension_count", "attention.key_length", "attention.value_length",
		"attention.key_length_mla", "attention.value_length_mla"} {
		key := m.arch + "." + name
		m.read[key] = true
		size[name] = attempt.Must(m.f.Int(key, 0, 0, model.MaxHidden))
	}
	rank, _ := m.config["kv_lora_rank"].(int64)
	key, value, rope := "attention.key_length", "attention.value_length", size["rope.dimension_count"]
	if size[key+"_mla"] > 0 || size[value+"_mla"] > 0 {
		if size[key] != rank+rope || size[value] != rank {
			panic(attempt.Failure{Err: &model.Error{Field: m.arch + "." + key, Kind: model.ErrUnsupported,
				Detail: fmt.Sprintf("%d, with values of %d: only a latent of %d and %d rotated elements are supported",
					size[key], size[value], rank, rope)}})
		}
		key, value = key+"_mla", value+"_mla"
	}
	m.set("qk_rope_head_dim", m.arch+".rope.dimension_count", rope)
	m.set("qk_nope_head_dim", m.arch+"."+key, size[key]-rope)
	m.set("v_head_dim", m.arch+"."+value, size[value])
}

func (m *metadata) deepseekExperts() {
	m.set("n_routed_experts", m.arch+".expert_count", nil)
	some := m.mixture()
	for _, p := range [][2]string{{"expert_count", "n_routed_experts"}, {"expert_feed_forward_length", "moe_intermediate_size"},
		{"expert_shared_count", "n_shared_experts"},
		{"leading_dense_block_count", "first_k_dense_replace"}, {"expert_weights_scale", "routed_scaling_factor"}} {
		m.take(p[0], p[1])
	}
	for field, def := range map[string]any{"n_shared_experts": 0, "first_k_dense_replace": 0, "routed_scaling_factor": 1} {
		if _, ok := m.config[field]; !ok {
			m.config[field] = def
		}
	}
	norm := attempt.Must(m.f.Bool(m.arch+".expert_weights_norm", false))
	m.read[m.arch+".expert_weights_norm"] = true
	m.set("norm_topk_prob", m.arch+".expert_weights_norm", norm)
	const softmax, sigmoid = 1, 2
	score := m.number("expert_gating_func", softmax) // missing in files from before V3
	groups := m.number("expert_group_count", 1)
	m.take("expert_group_used_count", "topk_group")
	if _, ok := m.config["topk_group"]; !ok {
		m.config["topk_group"] = 1
	}
	m.set("n_group", m.arch+".expert_group_count", max(groups, 1))
	switch {
	case !some && score == softmax:
	case score == sigmoid:
		m.set("architectures", "general.architecture", []string{"DeepseekV3ForCausalLM"})
	case score != softmax:
		panic(attempt.Failure{Err: &model.Error{Field: m.arch + ".expert_gating_func", Kind: model.ErrUnsupported,
			Detail: fmt.Sprintf("%g; known: %d (softmax), %d (sigmoid)", score, softmax, sigmoid)}})
	case groups > 1:
		m.set("topk_method", m.arch+".expert_group_count", "group_limited_greedy")
	}
}

// yarn reads YaRN's settings. The converter writes mscale_all_dim (for deepseek2 a tenth of it) and
// omits mscale, for which llama.cpp uses the same value.
func (m *metadata) yarn(key string, factor float64) {
	original := m.arch + ".rope.scaling.original_context_length"
	n := attempt.Must(m.f.Int(original, 0, 0, model.MaxPositions))
	if n == 0 {
		panic(attempt.Failure{Err: &model.Error{Field: original, Kind: model.ErrMissing, Detail: "missing"}})
	}
	scaling := map[string]any{"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": n}
	for name, field := range map[string]string{"yarn_beta_fast": "beta_fast", "yarn_beta_slow": "beta_slow",
		"yarn_log_multiplier": "mscale_all_dim"} {
		v := m.number("rope.scaling."+name, 0)
		if v != 0 {
			scaling[field] = v
		}
	}
	if log, ok := scaling["mscale_all_dim"].(float64); ok {
		all := math.Round(log*1e6) / 1e6 // a float32
		if m.arch == "deepseek2" {
			all = math.Round(log*1e7) / 1e6
		}
		scaling["mscale"], scaling["mscale_all_dim"] = all, all
	}
	m.set("rope_scaling", key, scaling)
}
