package families

import "github.com/shoal-llm/shoal/internal/engine/model"

// Qwen2 and Qwen2.5 (Yang et al., arXiv 2407.10671, 2412.15115): the equations of llama.go, with
// biases on query, key and value only:
//
//	q, k, v = Q h + q0, K h + k0, V h + v0
//
// The layers from max_window_layers on may have a sliding window; published models switch it off.
func init() {
	model.Register(model.Family{
		Name:     "Qwen2ForCausalLM",
		Defaults: map[string]string{"num_key_value_heads": "32"},
		Read:     readQwen2,
	})
}

func readQwen2(f *model.Fields, c *model.Config) {
	c.QKVBias = true
	readQwen(f, c)
}

// readQwen reads the settings that the dense Qwen models share.
func readQwen(f *model.Fields, c *model.Config) {
	c.Tied = f.Bool("tie_word_embeddings", false)
	defaultPositions(f, c, 32768)
	model.ReadRope(f, c, 10000)
	f.ReadActivation("hidden_act", "silu")
	slides, from := f.Bool("use_sliding_window", false), f.Index("max_window_layers", 28, model.MaxLayers)
	in := func(layer int) bool { return layer >= from }
	switch c.Architecture {
	case qwen2Moe:
		in = func(layer int) bool { return layer%2 == 0 && layer < from }
	case qwen3Moe: // the reference reads neither layer_types nor max_window_layers
		in = func(int) bool { return true }
		f.Drop("layer_types")
	}
	if f.Given("sliding_window") && !f.Has("sliding_window") { // null: none
		slides = false
	}
	model.ReadWindows(f, c, 4096, func(layer int) bool { return slides && in(layer) })
	c.DropIdleWindows()
}
