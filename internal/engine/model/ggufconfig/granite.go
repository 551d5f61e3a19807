package ggufconfig

import "math"

// granite scales scores by 1/sqrt(width of a head) if the file has no scale, as llama.cpp does.
func (m *metadata) granite() {
	for _, p := range [][2]string{{"embedding_scale", "embedding_multiplier"}, {"residual_scale", "residual_multiplier"},
		{"logit_scale", "logits_scaling"}, {"attention.scale", "attention_multiplier"}} {
		m.take(p[0], p[1])
	}
	if width, ok := m.config["head_dim"].(int64); ok && m.config["attention_multiplier"] == nil && width > 0 {
		m.set("attention_multiplier", m.arch+".attention.key_length", 1/math.Sqrt(float64(width)))
	}
}
