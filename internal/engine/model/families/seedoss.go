package families

import "github.com/shoal-llm/shoal/internal/engine/model"

// Seed-OSS (ByteDance, 2025): the equations of llama.go. Queries, keys and values have biases
// (attention_bias, by default true), the output projection by attention_out_bias. head_dim is 128 by
// default, for every hidden size.
func init() {
	model.Register(model.Family{
		Name:     "SeedOssForCausalLM",
		Defaults: map[string]string{"head_dim": "128", "num_key_value_heads": "8", "max_position_embeddings": "524288"},
		Read:     readSeedOss,
	})
}

func readSeedOss(f *model.Fields, c *model.Config) {
	c.Tied = f.Bool("tie_word_embeddings", false)
	c.QKVBias = f.Bool("attention_bias", true)
	c.OutBias = f.Bool("attention_out_bias", false)
	c.MLPBias = f.Bool("mlp_bias", false)
	model.ReadRope(f, c, 10000)
	f.ReadActivation("hidden_act", "silu")
}
