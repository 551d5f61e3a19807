package families

import (
	"fmt"

	"github.com/shoal-llm/shoal/internal/engine/model"
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
	model.Register(model.Family{Name: "Olmo2ForCausalLM", Defaults: defaults, Read: readOlmo2, Layer: postNormLayer})
	model.Register(model.Family{Name: "Olmo3ForCausalLM", Defaults: defaults, Read: readOlmo3, Layer: postNormLayer})
}

func readOlmo2(f *model.Fields, c *model.Config) {
	readOlmo(f, c)
	model.ReadRope(f, c, 10000)
}

func readOlmo3(f *model.Fields, c *model.Config) {
	readOlmo(f, c)
	model.ReadWindows(f, c, 4096, func(layer int) bool { return (layer+1)%4 != 0 })
	if !f.ReadRopes(c, f.Number("rope_theta", 500000, 2, model.MaxTheta), 500000) {
		if f.Has("rope_parameters") {
			f.Refuse("rope_parameters", "has neither full_attention nor sliding_attention, whose rotations transformers reads")
		}
		model.ReadRope(f, c, 500000)
		c.LocalRope = rotary.Rope{Theta: c.Rope.Theta}
	}
}

func readOlmo(f *model.Fields, c *model.Config) {
	c.Tied = f.Bool("tie_word_embeddings", false)
	c.QKVBias = f.Bool("attention_bias", false)
	c.OutBias = c.QKVBias
	c.QKNorm, c.QKNormOf = true, model.OfProjection
	f.ReadActivation("hidden_act", "silu")
}

// postNormLayer has norms after attention and FFN, none before.
func postNormLayer(c *model.Config, i int) model.LayerSpec {
	l := model.DecoderLayer(c, i)
	p := fmt.Sprintf("model.layers.%d.", i)
	l.AttnNorm, l.FFNNorm = "", ""
	l.PostAttnNorm, l.PostFFNNorm = p+"post_attention_layernorm.weight", p+"post_feedforward_layernorm.weight"
	return l
}
