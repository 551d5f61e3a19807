package families

import (
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/model"
)

// EXAONE 4 (LG AI Research, arXiv 2507.11407): norms after attention and FFN as in olmo2.go, and
// norms of query and key heads as in qwen3.go. In models with sliding windows, three of four layers
// have one and rotate; the others attend to everything and do not rotate (NoPE).
func init() {
	model.Register(model.Family{
		Name:     "Exaone4ForCausalLM",
		Defaults: map[string]string{"num_key_value_heads": "32", "rms_norm_eps": "1e-5"},
		Read:     readExaone4,
		Layer:    postNormLayer,
	})
}

func readExaone4(f *model.Fields, c *model.Config) {
	c.Tied = f.Bool("tie_word_embeddings", false)
	c.QKNorm = true
	model.ReadRope(f, c, 10000)
	f.ReadActivation("hidden_act", "silu")
	var kinds []string
	f.Get("layer_types", &kinds, "a list of names")
	if f.Given("sliding_window") && !f.Has("sliding_window") { // null: no windows, all layers rotate
		if slices.Contains(kinds, "sliding_attention") {
			f.Fail("sliding_window", model.ErrFormat, "null, but layer_types has sliding_attention")
		}
		return
	}
	every := func(int) bool { return false }
	if kinds == nil { // a pattern such as LLLG is used only without layer_types
		pattern := f.Size("sliding_window_pattern", 4, model.MaxLayers)
		every = func(layer int) bool { return (layer+1)%pattern != 0 }
	}
	model.ReadWindows(f, c, 4096, every)
	for layer := range c.Layers {
		if c.Windows == nil || c.Windows[layer] == 0 {
			c.Unrotated = append(c.Unrotated, layer)
		}
	}
}
