package ggufconfig

import (
	"github.com/shoal-llm/shoal/internal/attempt"
	"github.com/shoal-llm/shoal/internal/engine/model"
)

// Encoders in GGUF, as llama.cpp's converter writes them. The norm at the end of a layer has its own name
// (see EndNorm). XLM-RoBERTa is written as a BERT, without the first positions, which it does not use.
var bertGGUF = map[string]string{"attn_output_norm": "post_attention_layernorm",
	"layer_output_norm": EndNorm, "attn_qkv": "self_attn.qkv_proj"}

var modernBertGGUF = map[string]string{"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}

// EndNorm is the name that HubName gives to the norm at the end of a layer: the next layer's first norm,
// or the final norm.
const EndNorm = "end_norm"

// inputsGGUF names the tensors of an encoder's inputs.
var inputsGGUF = map[string]string{
	"token_embd_norm.weight": model.EmbedNorm, "token_embd_norm.bias": "model.embed_norm.bias", "token_types.weight": model.EmbedTypes,
	"position_embd.weight": model.EmbedPositions,
}

func (m *metadata) encoder() {
	m.take(layerNormEps, "layer_norm_eps")
	for _, t := range m.tensors {
		if t.Name == "token_types.weight" && len(t.Shape) == 2 {
			m.set("type_vocab_size", t.Name, t.Shape[0])
		}
	}
}

func (m *metadata) bert() {
	m.encoder()
	m.set("hidden_act", "general.architecture", "gelu")
}

func finishBert(c *model.Config) { c.MLPBias = true }

func (m *metadata) nomicBert() {
	m.encoder()
	m.set("hidden_act", "general.architecture", "silu")
}

// modernBert reads the base of rotations in layers with a window. Older files do not have it, and llama.cpp
// then uses a constant.
func (m *metadata) modernBert() {
	m.encoder()
	window := m.arch + ".attention.sliding_window"
	m.read[window] = true
	m.set("local_attention", window, attempt.Must(m.f.Int(window, 128, 1, model.MaxPositions)))
	every := window + "_pattern"
	m.read[every] = true
	m.set("global_attn_every_n_layers", every, attempt.Must(m.f.Int(every, 3, 1, model.MaxLayers)))
	if base, ok := m.config["rope_theta"]; ok {
		m.set("global_rope_theta", m.from["rope_theta"], base)
		delete(m.config, "rope_theta")
	}
	m.set("local_rope_theta", m.arch+".rope.freq_base_swa", m.number("rope.freq_base_swa", 10000))
}
