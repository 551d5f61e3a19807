package families

import "github.com/shoal-llm/shoal/internal/engine/model"

// Llama (Touvron et al., arXiv 2302.13971; Llama 3, arXiv 2407.21783), with
// grouped-query attention (Ainslie et al., arXiv 2305.13245):
//
//	x = embedding[token]                                  (hidden)
//	for each layer:
//	    h = RMSNorm(x, AttnNorm)                          (hidden)
//	    q, k, v = Q h, K h, V h                           (heads*dim, kv*dim, kv*dim)
//	    q, k = RoPE(q), RoPE(k)                           pairs (i, i+dim/2)
//	    x += O attention(q, k, v)                         scores scaled by 1/sqrt(dim)
//	    h = RMSNorm(x, MLPNorm)
//	    x += Down (SiLU(Gate h) * Up h)                   (ffn inside)
//	logits = Head RMSNorm(x, Norm)                        (vocab)
func init() {
	model.Register(model.Family{
		Name: "LlamaForCausalLM",
		Read: readLlama,
	})
}

func readLlama(f *model.Fields, c *model.Config) {
	c.Tied = f.Bool("tie_word_embeddings", false)
	c.QKVBias = f.Bool("attention_bias", false)
	c.OutBias = c.QKVBias // transformers gives all four projections a bias, or none
	c.MLPBias = f.Bool("mlp_bias", false)
	model.ReadRope(f, c, 10000)
	f.ReadActivation("hidden_act", "silu")
}
