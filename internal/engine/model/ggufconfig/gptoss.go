package ggufconfig

// gpt-oss in GGUF. This model does not round the ramp of YaRN, and the file has no key for that.
var gptOssGGUF = map[string]string{"post_attention_norm": "post_attention_layernorm", "attn_sinks.weight": "self_attn.sinks"}

func (m *metadata) gptOss() {
	m.need("expert_count", "num_local_experts")
	m.need("expert_used_count", "num_experts_per_tok")
	m.need("expert_feed_forward_length", "intermediate_size")
	m.need("attention.sliding_window", "sliding_window")
	if scaling, ok := m.config["rope_scaling"].(map[string]any); ok {
		scaling["truncate"] = false
	}
}
