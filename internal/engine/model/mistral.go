package model

// Mistral (Jiang et al., arXiv 2310.06825): the equations of llama.go without biases. The first
// version has a sliding window W: position i attends to positions i-W+1 to i. Later versions (0.2
// on, Nemo, Small, Large) have no window. In Nemo and Small head_dim differs from hidden/heads.
func init() {
	register(architecture{
		Name:     "MistralForCausalLM",
		defaults: map[string]string{"num_key_value_heads": "8"},
		read:     readMistral,
		layer:    llamaLayer,
		extra:    llamaExtra,
	})
}

func readMistral(f *fields, c *Config) {
	c.Tied = f.Bool("tie_word_embeddings", false)
	defaultPositions(f, c, 131072)
	readRope(f, c, 10000)
	f.activation("hidden_act", "silu")
	if !f.has("sliding_window") && f.given("sliding_window") {
		return // null: none
	}
	readWindows(f, c, 4096, func(int) bool { return true })
	c.dropIdle()
}

// defaultPositions sets the family's default if config.json has no max_position_embeddings.
func defaultPositions(f *fields, c *Config, def int) {
	if !f.has("max_position_embeddings") {
		c.MaxPositions = def
	}
}
