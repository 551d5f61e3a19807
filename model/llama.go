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
		Name:    "LlamaForCausalLM",
		read:    readLlama,
		tensors: llamaTensors,
		extra:   llamaExtra,
	})
}

// Tensors outside the layers.
const (
	LlamaEmbedding = "model.embed_tokens.weight" // (vocab, hidden)
	LlamaNorm      = "model.norm.weight"         // (hidden)
	LlamaHead      = "lm_head.weight"            // (vocab, hidden); the embedding when tied
)

// LlamaNames are the tensors of one layer. Biases are there when the config
// says so.
type LlamaNames struct {
	AttnNorm            string // (hidden)
	Q                   string // (heads*dim, hidden)
	K, V                string // (kv*dim, hidden)
	O                   string // (hidden, heads*dim)
	QBias, KBias, VBias string // (heads*dim), (kv*dim), (kv*dim): Config.QKVBias
	OBias               string // (hidden): Config.OutBias
	MLPNorm             string // (hidden)
	Gate, Up            string // (ffn, hidden)
	Down                string // (hidden, ffn)
	QNorm, KNorm        string // (dim), one for all heads: Config.QKNorm
	GateBias, UpBias    string // (ffn): Config.MLPBias
	DownBias            string // (hidden): Config.MLPBias

	PostAttnNorm, PostMLPNorm string // (hidden), before the residual sums: Config.PostNorms
}

// LlamaLayer names the tensors of layer i, counted from 0.
func LlamaLayer(i int) LlamaNames {
	attn := fmt.Sprintf("model.layers.%d.self_attn.", i)
	mlp := fmt.Sprintf("model.layers.%d.mlp.", i)
	return LlamaNames{
		AttnNorm: fmt.Sprintf("model.layers.%d.input_layernorm.weight", i),
		Q:        attn + "q_proj.weight", QBias: attn + "q_proj.bias",
		K: attn + "k_proj.weight", KBias: attn + "k_proj.bias",
		V: attn + "v_proj.weight", VBias: attn + "v_proj.bias",
		O: attn + "o_proj.weight", OBias: attn + "o_proj.bias",
		QNorm: attn + "q_norm.weight", KNorm: attn + "k_norm.weight",
		MLPNorm: fmt.Sprintf("model.layers.%d.post_attention_layernorm.weight", i),
		Gate:    mlp + "gate_proj.weight", GateBias: mlp + "gate_proj.bias",
		Up: mlp + "up_proj.weight", UpBias: mlp + "up_proj.bias",
		Down: mlp + "down_proj.weight", DownBias: mlp + "down_proj.bias",
	}
}

func readLlama(f *fields, c *Config) {
	c.Tied = f.Bool("tie_word_embeddings", false)
	c.QKVBias = f.Bool("attention_bias", false)
	c.OutBias = c.QKVBias // transformers gives all four projections a bias, or none
	c.MLPBias = f.Bool("mlp_bias", false)
	c.Rope = readRope(f, 10000)
	f.OneOf("hidden_act", "silu", "silu")
}

// llamaTensors is also the table of the families that vary Llama by biases,
// head norms and experts alone: Mistral, Mixtral, Qwen2, Qwen3 and its MoE.
func llamaTensors(c *Config) []Spec {
	q, kv := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	var specs []Spec
	vector := func(name string, n int) { specs = append(specs, Spec{name, []int{n}}) }
	matrix := func(name string, rows, cols int, bias bool, biasName string) {
		specs = append(specs, Spec{name, []int{rows, cols}})
		if bias {
			vector(biasName, rows)
		}
	}
	matrix(LlamaEmbedding, c.Vocab, c.Hidden, false, "")
	for i := range c.Layers {
		l := c.LayerNames(i)
		vector(l.AttnNorm, c.Hidden)
		matrix(l.Q, q, c.Hidden, c.QKVBias, l.QBias)
		matrix(l.K, kv, c.Hidden, c.QKVBias, l.KBias)
		matrix(l.V, kv, c.Hidden, c.QKVBias, l.VBias)
		if c.QKNorm {
			vector(l.QNorm, c.HeadDim)
			vector(l.KNorm, c.HeadDim)
		}
		matrix(l.O, c.Hidden, q, c.OutBias, l.OBias)
		if c.PostNorms {
			vector(l.PostAttnNorm, c.Hidden)
		}
		vector(l.MLPNorm, c.Hidden)
		specs = append(specs, ffnTensors(c, i)...)
		if c.PostNorms {
			vector(l.PostMLPNorm, c.Hidden)
		}
	}
	vector(LlamaNorm, c.Hidden)
	if !c.Tied {
		matrix(LlamaHead, c.Vocab, c.Hidden, false, "")
	}
	return specs
}

// llamaExtra allows what older exports carry along: the rotary frequencies
// (computed here), a second copy of a tied head, and anything outside the
// decoder. A further tensor inside it (a bias, a norm, a layer too many) means
// that the config describes another model.
func llamaExtra(name string) bool {
	return strings.HasSuffix(name, ".rotary_emb.inv_freq") || name == LlamaHead ||
		!strings.HasPrefix(name, "model.") && !strings.HasPrefix(name, "lm_head.")
}
