package model

import "slices"

// EXAONE 4 (LG AI Research, arXiv 2507.11407): norms after attention and FFN as in olmo2.go, and
// norms of query and key heads as in qwen3.go. In models with sliding windows, three of four layers
// have one and rotate; the others attend to everything and do not rotate (NoPE).
func init() {
	register(architecture{
		Name:     "Exaone4ForCausalLM",
		defaults: map[string]string{"num_key_value_heads": "32", "rms_norm_eps": "1e-5"},
		read:     readExaone4,
		layer:    postNormLayer,
		extra:    llamaExtra,
	})
}

func readExaone4(f *fields, c *Config) {
	c.Tied = f.Bool("tie_word_embeddings", false)
	c.QKNorm = true
	readRope(f, c, 10000)
	f.activation("hidden_act", "silu")
	var kinds []string
	f.get("layer_types", &kinds, "a list of names")
	if f.given("sliding_window") && !f.has("sliding_window") { // null: no windows, all layers rotate
		if slices.Contains(kinds, "sliding_attention") {
			f.fail("sliding_window", ErrFormat, "null, but layer_types has sliding_attention")
		}
		return
	}
	every := func(int) bool { return false }
	if kinds == nil { // a pattern such as LLLG is used only where layer_types says the same
		pattern := f.Size("sliding_window_pattern", 4, maxLayers)
		every = func(layer int) bool { return (layer+1)%pattern != 0 }
	}
	readWindows(f, c, 4096, every)
	for layer := range c.Layers {
		if c.Windows == nil || c.Windows[layer] == 0 {
			c.Unrotated = append(c.Unrotated, layer)
		}
	}
}
