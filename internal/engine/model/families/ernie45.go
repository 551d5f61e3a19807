package families

import "github.com/shoal-llm/shoal/internal/engine/model"

// ERNIE 4.5, dense (Baidu, 2025): the equations of llama.go, with rotated pairs (2i, 2i+1). use_bias
// puts a bias on all projections.
func init() {
	model.Register(model.Family{
		Name:     "Ernie4_5ForCausalLM",
		Defaults: map[string]string{"num_key_value_heads": "2", "rms_norm_eps": "1e-5", "max_position_embeddings": "131072", "head_dim": "128"},
		Read:     readErnie45,
	})
}

func readErnie45(f *model.Fields, c *model.Config) {
	c.Tied = f.Bool("tie_word_embeddings", true)
	c.QKVBias = f.Bool("use_bias", false)
	c.OutBias, c.MLPBias = c.QKVBias, c.QKVBias
	c.Neighbours = true
	model.ReadRope(f, c, 500000)
	f.ReadActivation("hidden_act", "silu")
}
