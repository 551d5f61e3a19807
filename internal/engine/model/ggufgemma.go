package model

import (
	"fmt"

	"github.com/shoal-llm/shoal/internal/attempt"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Gemma 3 in GGUF. The converter adds the 1 to the weights of norms. Five of six layers have the
// window, unless a pattern is given. Their rotation has llama.cpp's constant base, unless one is
// given. Scores are scaled by the width of a head. The 27B model, known by its 62 layers, uses
// hidden/heads instead. attention.scale overrides both.
var gemmaGGUF = map[string]string{
	"ffn_norm": "pre_feedforward_layernorm", "post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm",
}

// finishGemma3 sets what a file does not hold. The stored type does not show the trained one, and
// all models that Google published are bf16. (llama.cpp does not round the embedding's scale.)
func finishGemma3(c *Config) { c.NormsAddOne, c.TrainedAs = false, tensor.BF16 }

func (m *metadata) gemma3() {
	window := m.window()
	if window == 0 { // converted with a pattern of 1
		m.set("sliding_window_pattern", m.arch+".attention.sliding_window", 1)
	} else {
		m.take("attention.sliding_window_pattern", "sliding_window_pattern")
	}
	for _, p := range [][2]string{{"rope.freq_base_swa", "rope_local_base_freq"}, {"final_logit_softcapping", "final_logit_softcapping"}, {"attn_logit_softcapping", "attn_logit_softcapping"}} {
		m.take(p[0], p[1])
	}
	scale := m.number("attention.scale", 0)
	whole := func(field string) int64 { n, _ := m.config[field].(int64); return n }
	scalar, key := float64(whole("head_dim")), m.arch+".attention.key_length"
	const layers27B = 62
	switch heads := whole("num_attention_heads"); {
	case scale != 0:
		if key = m.arch + ".attention.scale"; !(scale > 1e-3 && scale < 1e3) {
			panic(attempt.Failure{Err: &Error{Field: key, Kind: ErrOutOfRange, Detail: fmt.Sprintf("%g; want 1e-3..1e3", scale)}})
		}
		scalar = 1 / (scale * scale)
	case whole("num_hidden_layers") == layers27B && heads > 0:
		scalar, key = float64(whole("hidden_size")/heads), m.arch+".embedding_length"
	}
	m.set("query_pre_attn_scalar", key, scalar)
}
