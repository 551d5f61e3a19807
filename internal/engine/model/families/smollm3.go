package families

import "github.com/shoal-llm/shoal/internal/engine/model"

// SmolLM3 (Hugging Face, 2025): the equations of llama.go, but some layers do not rotate queries and
// keys (NoPE; Kazemnejad et al., arXiv 2305.19466). no_rope_layers names them; in published
// models it is every fourth layer.
func init() {
	model.Register(model.Family{
		Name:     "SmolLM3ForCausalLM",
		Defaults: map[string]string{"num_key_value_heads": "4", "max_position_embeddings": "32768"},
		Rotary:   []string{"no_rope_layers"},
		Read:     readSmolLM3,
	})
}

func readSmolLM3(f *model.Fields, c *model.Config) {
	c.Tied = f.Bool("tie_word_embeddings", true)
	c.QKVBias = f.Bool("attention_bias", false)
	c.OutBias = c.QKVBias
	c.MLPBias = f.Bool("mlp_bias", false)
	model.ReadRope(f, c, 2e6)
	model.ReadUnrotated(f, c, 4)
	f.ReadActivation("hidden_act", "silu")
	slides := f.Bool("use_sliding_window", false) && f.Has("sliding_window") // then in the layers that do not rotate
	model.ReadWindows(f, c, model.MaxPositions, func(layer int) bool { return slides && c.RopeOf(layer) > 0 })
	if !f.Has("sliding_window") {
		c.Windows = nil
	}
	c.DropIdleWindows()
}
