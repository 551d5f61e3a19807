package model

// gpt-oss in GGUF. The file has no key for the ramp of YaRN, which this model does not round.
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

// biasOf is the name of a bias of the router or the experts by its name in a block of a GGUF file;
// "": it is no such bias.
func (n *MoENames) biasOf(part string) string {
	if n.Biases == nil {
		return ""
	}
	return map[string]string{"ffn_gate_inp.bias": n.Biases.Router, "ffn_gate_exps.bias": n.Biases.Gate, "ffn_up_exps.bias": n.Biases.Up, "ffn_down_exps.bias": n.Biases.Down}[part]
}
