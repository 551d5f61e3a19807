package families

import "github.com/shoal-llm/shoal/internal/engine/model"

// Granite 3 and 4, dense (IBM): the equations of llama.go with four multipliers:
//
//	x = embedding[token] * embedding_multiplier
//	x += residual_multiplier * (attention or FFN)         scores scaled by attention_multiplier
//	logits = Head RMSNorm(x, Norm) / logits_scaling
func init() {
	model.Register(model.Family{
		Name: "GraniteForCausalLM",
		Read: readGranite,
	})
}

func readGranite(f *model.Fields, c *model.Config) {
	readLlama(f, c)
	scale := f.Number("attention_multiplier", 1, 1e-6, 1e6)
	c.QueryScale = 1 / (scale * scale)
	c.Multipliers = model.Multipliers{
		Embedding: float32(f.Number("embedding_multiplier", 1, 1e-6, 1e6)),
		Residual:  float32(f.Number("residual_multiplier", 1, 1e-6, 1e6)),
		Logits:    float32(1 / f.Number("logits_scaling", 1, 1e-6, 1e6)),
	}
}
