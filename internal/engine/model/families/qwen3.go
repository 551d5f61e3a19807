package families

import "github.com/shoal-llm/shoal/internal/engine/model"

// Qwen3, dense (Yang et al., arXiv 2505.09388): the equations of llama.go, with every query head
// and key head normalised before its rotation:
//
//	q_i = RoPE(RMSNorm(q_i, QNorm))                       (dim) of each query head
//	k_j = RoPE(RMSNorm(k_j, KNorm))                       (dim) of each key head
//
// The heads' width is independent of hidden/heads: head_dim defaults to 128. attention_bias puts a
// bias on all four projections.
func init() {
	model.Register(model.Family{
		Name:     "Qwen3ForCausalLM",
		Defaults: map[string]string{"num_key_value_heads": "32"},
		Read:     readQwen3,
	})
}

func readQwen3(f *model.Fields, c *model.Config) {
	c.QKNorm = true
	c.QKVBias = f.Bool("attention_bias", false)
	c.OutBias = c.QKVBias
	if !f.Has("head_dim") {
		c.HeadDim = 128
	}
	readQwen(f, c)
}
