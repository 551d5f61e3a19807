package ggufconfig

import "github.com/shoal-llm/shoal/internal/engine/model"

// llama4 sets the constants of llama.cpp: chunks of 8192 tokens and queries that grow in steps of 8192, in
// layers by the interval 4. With a window of 0, there are neither and every layer rotates. Models with 128
// experts have no norms of queries and keys.
func (m *metadata) llama4() {
	const noNorm = 128
	mlp, key := m.config["intermediate_size"], m.arch+".feed_forward_length"
	m.set("intermediate_size_mlp", key, mlp)
	if m.mixture() {
		m.need("expert_feed_forward_length", "intermediate_size")
		m.take("interleave_moe_layer_step", "interleave_moe_layer_step")
	} else {
		m.set("moe_layers", m.arch+".expert_count", []int{})
		for _, unused := range []string{"expert_feed_forward_length", "interleave_moe_layer_step"} {
			m.read[m.arch+"."+unused] = true
		}
	}
	m.set("use_qk_norm", m.arch+".expert_count", m.optional("expert_count", model.MaxExperts) != noNorm)
	window := m.arch + ".attention.sliding_window"
	if _, ok := m.f.Value(window); ok && m.number("attention.sliding_window", 0) == 0 {
		m.set("attention_chunk_size", window, nil)
		m.set("no_rope_layer_interval", window, model.MaxLayers)
		return
	}
	m.read[window] = true // llama.cpp ignores other numbers
}

var llama4GGUF = sharedGGUF("feed_forward.shared_expert", "",
	map[string]string{"ffn_gate": "feed_forward.gate_proj", "ffn_up": "feed_forward.up_proj", "ffn_down": "feed_forward.down_proj"})
