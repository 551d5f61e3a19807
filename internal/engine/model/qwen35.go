package model

import "fmt"

// Qwen3.5, 3.6 and 3.8, dense. Most layers have the gated delta rule (delta.go) instead of
// attention; by default every fourth layer has attention. Differences of that from llama.go:
//
//	q_i, g_i = Q_i h                                      (dim), (dim) of each query head
//	q_i, k_j = RoPE(RMSNorm(q_i)), RoPE(RMSNorm(k_j))     the first quarter of a head rotates
//	x       += O [attention(q, k, v) * sigmoid(g)]
//
// Every norm except that of the gated delta rule multiplies by 1 + its weight.
func init() {
	register(architecture{
		Name: "Qwen3_5ForCausalLM",
		defaults: map[string]string{"hidden_size": "4096", "intermediate_size": "12288", "num_hidden_layers": "32", "num_attention_heads": "16",
			"num_key_value_heads": "4", "head_dim": "256", "vocab_size": "248320", "max_position_embeddings": "32768"},
		read:   readQwen35,
		layer:  qwen35Layer,
		rotary: []string{"partial_rotary_factor"},
		extra:  llamaExtra,
	})
}

func readQwen35(f *fields, c *Config) {
	f.plainPositions()
	c.Tied = f.Bool("tie_word_embeddings", false)
	c.QKNorm, c.NormsAddOne, c.OutputGate = true, true, true
	if f.Bool("attention_bias", false) {
		f.fail("attention_bias", ErrUnsupported, "true: biases of gated queries are not implemented")
	}
	if !f.Bool("attn_output_gate", true) {
		f.fail("attn_output_gate", ErrUnsupported, "false: attention without an output gate is not implemented for this family")
	}
	if kind := f.Text("output_gate_type", "swish"); sameActivation[kind] != "silu" && kind != "silu" {
		f.fail("output_gate_type", ErrUnsupported, "%q: the output of linear layers is gated by swish here", clip(kind))
	}
	f.activation("hidden_act", "silu")
	readDelta(f, c)
	c.readRotated(f, 0.25)
	readRope(f, c, 10000)
}

// readRotated reads the part of a head that rotates, in the forms of transformers 4 and 5.
func (c *Config) readRotated(f *fields, def float64) {
	part := f.Number("partial_rotary_factor", def, 0, 1)
	if p := f.Object("rope_parameters"); p != nil {
		part = p.Number("partial_rotary_factor", part, 0, 1)
		f.take(p)
	}
	if c.Rotated = int(part * float64(c.HeadDim)); f.err == nil && (c.Rotated < 2 || c.Rotated%2 != 0) {
		f.fail("partial_rotary_factor", ErrUnsupported, "%g: %d of %d elements of a head rotate; rotary positions need pairs", part, c.Rotated, c.HeadDim)
	}
	if c.Rotated == c.HeadDim {
		c.Rotated = 0
	}
}

func qwen35Layer(c *Config, i int) LayerSpec {
	l := llamaLayer(c, i)
	if c.Recurrent(i) {
		linearLayer(&l, fmt.Sprintf("model.layers.%d.", i))
		return l
	}
	c.gatedQuery(&l)
	return l
}
