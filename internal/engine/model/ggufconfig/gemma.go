package ggufconfig

import (
	"fmt"

	"github.com/shoal-llm/shoal/internal/attempt"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Gemma in GGUF. The converter adds the 1 to the weights of norms. In Gemma 3 five of six layers
// have the window, unless a pattern is given. Their rotation has llama.cpp's constant base, unless
// one is given. Gemma 2 and 3 scale scores by the width of a head. Their 27B models, known by the
// number of layers, use hidden/heads instead. attention.scale overrides both.
var gemmaGGUF = map[string]string{
	"ffn_norm": "pre_feedforward_layernorm", "post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm",
}

// finishGemma sets the settings that a file does not have. The stored type does not show the trained
// type, and all models that Google published are bf16. (llama.cpp does not round the embedding's scale.)
func finishGemma(c *model.Config) { c.NormsAddOne, c.TrainedAs = false, tensor.BF16 }

func (m *metadata) gemma3() {
	window := m.window()
	if window == 0 { // converted with a pattern of 1
		m.set("sliding_window_pattern", m.arch+".attention.sliding_window", 1)
	} else {
		m.take("attention.sliding_window_pattern", "sliding_window_pattern")
	}
	m.take("rope.freq_base_swa", "rope_local_base_freq")
	m.gemmaScores(62)
}

// gemmaEmbedding sets attention to both sides. The file's window counts the tokens of both sides together.
func (m *metadata) gemmaEmbedding() {
	m.gemma3()
	m.set("use_bidirectional_attention", "general.architecture", true)
}

// gemma2 reads the window, which every second layer has.
func (m *metadata) gemma2() {
	m.window()
	m.gemmaScores(46)
}

// gemmaScores reads caps and the scale of scores. layers27B is the number of layers of the family's
// 27B model.
func (m *metadata) gemmaScores(layers27B int64) {
	m.take("final_logit_softcapping", "final_logit_softcapping")
	m.take("attn_logit_softcapping", "attn_logit_softcapping")
	scale := m.number("attention.scale", 0)
	whole := func(field string) int64 { n, _ := m.config[field].(int64); return n }
	scalar, key := float64(whole("head_dim")), m.arch+".attention.key_length"
	switch heads := whole("num_attention_heads"); {
	case scale != 0:
		if key = m.arch + ".attention.scale"; !(scale > 1e-3 && scale < 1e3) {
			panic(attempt.Failure{Err: &model.Error{Field: key, Kind: model.ErrOutOfRange, Detail: fmt.Sprintf("%g; want 1e-3..1e3", scale)}})
		}
		scalar = 1 / (scale * scale)
	case whole("num_hidden_layers") == layers27B && heads > 0:
		scalar, key = float64(whole("hidden_size")/heads), m.arch+".embedding_length"
	}
	m.set("query_pre_attn_scalar", key, scalar)
}
