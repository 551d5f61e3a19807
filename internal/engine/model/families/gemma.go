package families

import (
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Gemma (Gemma Team, arXiv 2403.08295). Differences from llama.go: the embedding is scaled by
// sqrt(hidden), rounded to the type of the embedding. Every norm multiplies by 1 + its weight. The
// FFN's gate is GELU in its tanh form.
func init() {
	model.Register(model.Family{
		Name: "GemmaForCausalLM",
		Defaults: map[string]string{"hidden_size": "3072", "intermediate_size": "24576", "num_hidden_layers": "28", "num_attention_heads": "16",
			"num_key_value_heads": "16", "head_dim": "256", "vocab_size": "256000", "max_position_embeddings": "8192"},
		Read: func(f *model.Fields, c *model.Config) {
			// The value gelu of published files means the tanh form, as in transformers.
			if act := f.Text("hidden_act", "gelu"); act != "gelu" {
				f.ReadActivation("hidden_act", "gelu_pytorch_tanh")
			}
			readGemma(f, c)
			model.ReadRope(f, c, 10000)
		},
	})
}

// readGemma reads the settings that Gemma 1 to 3 have in common.
func readGemma(f *model.Fields, c *model.Config) {
	c.Tied = f.Bool("tie_word_embeddings", true)
	c.QKVBias = f.Bool("attention_bias", false)
	c.OutBias = c.QKVBias
	c.NormsAddOne, c.ScaledEmbedding = true, true
	c.Activation = tensor.GELUTanh
	f.ReadActivation("hidden_activation", "gelu_pytorch_tanh")
	if both := f.Bool("use_bidirectional_attention", false); both && c.Architecture != Gemma3 {
		f.MustBe("use_bidirectional_attention", false)
	} else {
		c.NonCausal = c.NonCausal || both
	}
}

// readCap reads the bound of scores or logits: def if the key is missing, and none for null.
func readCap(f *model.Fields, key string, def float64) float32 {
	if f.Given(key) && !f.Has(key) {
		return 0
	}
	return float32(f.Number(key, def, 1e-3, 1e6))
}
