package model

// Gemma 2 (Gemma Team, arXiv 2408.00118). Differences from gemma.go: attention and FFN have norms
// before and after them, named as in gemma3.go. Scores are scaled by 1/sqrt(query_pre_attn_scalar) and
// capped: c tanh(score/c). Logits are capped too. Layers 0, 2, 4, ... have a sliding window.
func init() {
	register(architecture{
		Name: "Gemma2ForCausalLM",
		defaults: map[string]string{"hidden_size": "2304", "intermediate_size": "9216", "num_hidden_layers": "26", "num_attention_heads": "8",
			"num_key_value_heads": "4", "head_dim": "256", "vocab_size": "256000", "max_position_embeddings": "8192"},
		read:  readGemma2,
		layer: gemma3Layer,
		extra: llamaExtra,
	})
}

func readGemma2(f *fields, c *Config) {
	readGemma(f, c)
	c.QueryScale = f.Number("query_pre_attn_scalar", 256, 1e-3, 1e6)
	c.LogitCap = f.readCap("final_logit_softcapping", 30)
	c.ScoreCap = f.readCap("attn_logit_softcapping", 50)
	readWindows(f, c, 4096, func(layer int) bool { return layer%2 == 0 })
	readRope(f, c, 10000)
}
