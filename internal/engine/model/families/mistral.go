package families

import "github.com/shoal-llm/shoal/internal/engine/model"

// Mistral (Jiang et al., arXiv 2310.06825): the equations of llama.go without biases. The first
// version has a sliding window W: position i attends to positions i-W+1 to i. Later versions (0.2
// on, Nemo, Small, Large) have no window. In Nemo and Small head_dim differs from hidden/heads.
func init() {
	model.Register(model.Family{
		Name:     "MistralForCausalLM",
		Defaults: map[string]string{"num_key_value_heads": "8"},
		Read:     readMistral,
	})
}

func readMistral(f *model.Fields, c *model.Config) {
	c.Tied = f.Bool("tie_word_embeddings", false)
	defaultPositions(f, c, 131072)
	model.ReadRope(f, c, 10000)
	f.ReadActivation("hidden_act", "silu")
	if !f.Has("sliding_window") && f.Given("sliding_window") {
		return // null: none
	}
	model.ReadWindows(f, c, 4096, func(int) bool { return true })
	c.DropIdleWindows()
}

// defaultPositions sets the family's default if config.json has no max_position_embeddings.
func defaultPositions(f *model.Fields, c *model.Config, def int) {
	if !f.Has("max_position_embeddings") {
		c.MaxPositions = def
	}
}
