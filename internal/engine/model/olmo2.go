package model

import (
	"fmt"

	"github.com/shoal-llm/shoal/internal/engine/model/rotary"
)

// OLMo 2 (arXiv 2501.00656, section 3.2). Differences from llama.go: norms follow attention and FFN
// instead of preceding them, and the norms of queries and keys span all heads of a token:
//
//	q, k = RMSNorm(Q x, QNorm), RMSNorm(K x, KNorm)       over (heads*dim) and (kv*dim)
//	x += RMSNorm(O attention(RoPE(q), RoPE(k), V x), PostAttnNorm)
//	x += RMSNorm(Down (SiLU(Gate x) * Up x), PostFFNNorm)
//
// OLMo 3 adds a sliding window in three of four layers. Scaled positions (YaRN) apply to the other
// layers only.
func init() {
	defaults := map[string]string{"rms_norm_eps": "1e-5"}
	register(architecture{Name: "Olmo2ForCausalLM", defaults: defaults, read: readOlmo2, layer: postNormLayer, extra: llamaExtra})
	register(architecture{Name: "Olmo3ForCausalLM", defaults: defaults, read: readOlmo3, layer: postNormLayer, extra: llamaExtra})
}

func readOlmo2(f *fields, c *Config) {
	readOlmo(f, c)
	readRope(f, c, 10000)
}

func readOlmo3(f *fields, c *Config) {
	readOlmo(f, c)
	readWindows(f, c, 4096, func(layer int) bool { return (layer+1)%4 != 0 })
	if !f.readRopes(c, 500000, 500000) {
		if f.has("rope_parameters") {
			f.fail("rope_parameters", ErrUnsupported, "has neither full_attention nor sliding_attention, whose rotations transformers reads")
		}
		readRope(f, c, 500000)
		c.LocalRope = rotary.Rope{Theta: c.Rope.Theta}
	}
}

func readOlmo(f *fields, c *Config) {
	c.Tied = f.Bool("tie_word_embeddings", false)
	c.QKVBias = f.Bool("attention_bias", false)
	c.OutBias = c.QKVBias
	c.QKNorm, c.QKNormOf = true, OfProjection
	f.activation("hidden_act", "silu")
}

// postNormLayer has norms after attention and FFN, none before.
func postNormLayer(c *Config, i int) LayerSpec {
	l := llamaLayer(c, i)
	p := fmt.Sprintf("model.layers.%d.", i)
	l.AttnNorm, l.FFNNorm = "", ""
	l.PostAttnNorm, l.PostFFNNorm = p+"post_attention_layernorm.weight", p+"post_feedforward_layernorm.weight"
	return l
}
