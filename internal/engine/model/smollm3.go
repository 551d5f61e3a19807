package model

// SmolLM3 (Hugging Face, 2025): the equations of llama.go, with layers whose queries and keys are
// not rotated (NoPE; Kazemnejad et al., arXiv 2305.19466). Published models rotate in three of four
// layers, as no_rope_layers says.
func init() {
	register(architecture{
		Name:     "SmolLM3ForCausalLM",
		defaults: map[string]string{"num_key_value_heads": "4", "max_position_embeddings": "32768"},
		rotary:   []string{"no_rope_layers"},
		read:     readSmolLM3,
		layer:    llamaLayer,
		extra:    llamaExtra,
	})
}

func readSmolLM3(f *fields, c *Config) {
	c.Tied = f.Bool("tie_word_embeddings", true)
	c.QKVBias = f.Bool("attention_bias", false)
	c.OutBias = c.QKVBias
	c.MLPBias = f.Bool("mlp_bias", false)
	readRope(f, c, 2e6)
	readUnrotated(f, c, 4)
	f.activation("hidden_act", "silu")
	slides := f.Bool("use_sliding_window", false) && f.has("sliding_window") // then in the layers that do not rotate
	readWindows(f, c, maxPositions, func(layer int) bool { return slides && c.RopeOf(layer) > 0 })
	if !f.has("sliding_window") {
		c.Windows = nil
	}
	c.dropIdle()
}
