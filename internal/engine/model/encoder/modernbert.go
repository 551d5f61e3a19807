package encoder

import (
	"fmt"

	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/model/rotary"
)

// ModernBERT (Warner et al., arXiv 2412.13663). Norms precede attention and FFN again, mostly without
// biases, except that the first layer reads the normed embedding itself:
//
//	x = LayerNorm(embedding[token], EmbedNorm)
//	x += O attention(RoPE(Q h), RoPE(K h), V h)         h = LayerNorm(x, AttnNorm)
//	x += Down (GELU(Gate h) * Up h)                     h = LayerNorm(x, FFNNorm)
//
// In two of three layers a token attends to those at a distance of at most half of local_attention,
// with another base of their rotary positions.
func init() {
	model.Register(model.Family{
		Name: "ModernBertModel", Tiny: tiny(map[string]any{"num_hidden_layers": 4, "local_attention": 16, "rope_theta": nil,
			"global_rope_theta": 160000, "local_rope_theta": 10000, "norm_eps": 1e-5}),
		Defaults: map[string]string{"max_position_embeddings": "8192"},
		Aliases:  map[string]string{"layer_norm_eps": "norm_eps"},
		Read:     readModernBert, Layer: modernBertLayer, Extra: encoderExtra, Rename: modernBertName,
	})
}

func readModernBert(f *model.Fields, c *model.Config) {
	readEncoder(f, c)
	c.NormEps = float32(f.Number("layer_norm_eps", 1e-5, 1e-13, 0.1))
	c.NormBias = f.Bool("norm_bias", false)
	c.MLPBias = f.Bool("mlp_bias", false)
	c.QKVBias = f.Bool("attention_bias", false)
	c.OutBias = c.QKVBias
	if c.QKVBias || c.MLPBias {
		f.Refuse("attention_bias", "biases of fused projections are not implemented")
	}
	c.Inputs = model.Inputs{Norm: true}
	f.ReadActivation("hidden_activation", "gelu")
	every := f.Size("global_attn_every_n_layers", 3, model.MaxLayers)
	model.ReadSpans(f, c, "sliding_attention", "local_attention", 128, func(layer int) bool { return layer%every != 0 })
	for i, w := range c.Windows {
		c.Windows[i] = w/2 + min(w, 1)
	}
	// Files of before rope_parameters have a key for each of both bases.
	global, local := f.Number("global_rope_theta", 160000, 2, model.MaxTheta), f.Number("local_rope_theta", 10000, 2, model.MaxTheta)
	f.Drop("global_rope_theta")
	f.Drop("local_rope_theta")
	if !f.ReadRopes(c, global, local) {
		model.ReadRope(f, c, global)
		c.LocalRope = rotary.Rope{Theta: local}
	}
}

func modernBertLayer(c *model.Config, i int) model.LayerSpec {
	l := encoderLayer(c, i)
	q, kv := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	l.Q = model.Linear{Weight: fmt.Sprintf("model.layers.%d.self_attn.qkv_proj.weight", i), Of: q + 2*kv}
	l.K, l.V = l.Q, l.Q
	l.K.First, l.V.First = q, q+kv
	l.Gate = model.Linear{Weight: fmt.Sprintf("model.layers.%d.mlp.gate_up_proj.weight", i), Of: 2 * c.FFN}
	l.Up = l.Gate
	l.Up.First = c.FFN
	return l
}

var modernBertNames = map[string]string{
	"attn_norm": "input_layernorm", "attn.Wqkv": "self_attn.qkv_proj", "attn.Wo": "self_attn.o_proj", "mlp_norm": "post_attention_layernorm",
	"mlp.Wi": "mlp.gate_up_proj", "mlp.Wo": "mlp.down_proj",
}

func modernBertName(c *model.Config, name string) string {
	return renamed(name, func(module, part string) (string, bool) {
		switch module {
		case "embeddings.tok_embeddings":
			return "model.embed_tokens." + part, true
		case "embeddings.norm":
			return "model.embed_norm." + part, true
		case "final_norm":
			return "model.norm." + part, true
		}
		return encoderName(c, module, part, "layers.", modernBertNames)
	})
}
