package families

import "github.com/shoal-llm/shoal/internal/engine/model"

// Gemma 2 (Gemma Team, arXiv 2408.00118). Differences from gemma.go: attention and FFN have norms
// before and after them, named as in gemma3.go. Scores are scaled by 1/sqrt(query_pre_attn_scalar) and
// capped: c tanh(score/c). Logits are capped too. Layers 0, 2, 4, ... have a sliding window.
func init() {
	model.Register(model.Family{
		Name: "Gemma2ForCausalLM",
		Defaults: map[string]string{"hidden_size": "2304", "intermediate_size": "9216", "num_hidden_layers": "26", "num_attention_heads": "8",
			"num_key_value_heads": "4", "head_dim": "256", "vocab_size": "256000", "max_position_embeddings": "8192"},
		Read:  readGemma2,
		Layer: gemma3Layer,
	})
}

func readGemma2(f *model.Fields, c *model.Config) {
	readGemma(f, c)
	c.QueryScale = f.Number("query_pre_attn_scalar", 256, 1e-3, 1e6)
	c.LogitCap = readCap(f, "final_logit_softcapping", 30)
	c.ScoreCap = readCap(f, "attn_logit_softcapping", 50)
	model.ReadWindows(f, c, 4096, func(layer int) bool { return layer%2 == 0 })
	model.ReadRope(f, c, 10000)
}
