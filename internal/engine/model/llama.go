package model

import (
	"fmt"
	"strings"
)

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
	register(architecture{
		Name:  "LlamaForCausalLM",
		read:  readLlama,
		layer: llamaLayer,
		extra: llamaExtra,
	})
}

func readLlama(f *fields, c *Config) {
	c.Tied = f.Bool("tie_word_embeddings", false)
	c.QKVBias = f.Bool("attention_bias", false)
	c.OutBias = c.QKVBias // transformers gives all four projections a bias, or none
	c.MLPBias = f.Bool("mlp_bias", false)
	readRope(f, c, 10000)
	f.activation("hidden_act", "silu")
}

// llamaLayer also serves families that vary Llama only by biases, windows and experts. The other
// families start from it.
func llamaLayer(c *Config, i int) LayerSpec {
	p := fmt.Sprintf("model.layers.%d.", i)
	l := LayerSpec{
		AttnNorm: p + "input_layernorm.weight",
		Q:        linear(p+"self_attn.q_proj", c.QKVBias),
		K:        linear(p+"self_attn.k_proj", c.QKVBias),
		V:        linear(p+"self_attn.v_proj", c.QKVBias),
		O:        linear(p+"self_attn.o_proj", c.OutBias),
		FFNNorm:  p + "post_attention_layernorm.weight",
		Gate:     linear(p+"mlp.gate_proj", c.MLPBias),
		Up:       linear(p+"mlp.up_proj", c.MLPBias),
		Down:     linear(p+"mlp.down_proj", c.MLPBias),

		Window: c.Window(i), Rope: c.RopeOf(i), Grows: c.Growth.Beta != 0 && !c.Growth.Unrotated, Activation: c.Activation, NormsAddOne: c.NormsAddOne,
	}
	l.Q.Order = c.headOrder()
	l.K.Order = l.Q.Order
	if c.QKNorm {
		l.QNorm, l.KNorm = p+"self_attn.q_norm.weight", p+"self_attn.k_norm.weight"
	}
	if c.Sparse(i) {
		l.Experts = mlpExperts(p + "mlp.")
	}
	return l
}

// llamaExtra allows tensors of older exports: the rotary frequencies (computed here), a second copy
// of a tied head, and anything outside the decoder. Any other tensor inside it (a bias, a norm, an
// extra layer) means that the config describes another model.
func llamaExtra(name string) bool {
	return strings.HasSuffix(name, ".rotary_emb.inv_freq") || name == Head ||
		!strings.HasPrefix(name, "model.") && !strings.HasPrefix(name, "lm_head.")
}
