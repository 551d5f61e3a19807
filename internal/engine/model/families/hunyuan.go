package families

import (
	"fmt"

	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/model/rotary"
)

// Hunyuan, dense (Tencent, 2025): the equations of llama.go, with norms of query and key heads after
// their rotation:
//
//	q_i = RMSNorm(RoPE(q_i), QNorm)                       (dim) of each query head
//	k_j = RMSNorm(RoPE(k_j), KNorm)                       (dim) of each key head
//
// For long contexts, the base of the rotation is multiplied by alpha^(dim/(dim-2)). The files call that
// "dynamic", but it is the same for every length.
func init() {
	model.Register(model.Family{
		Name:     "HunYuanDenseV1ForCausalLM",
		Defaults: map[string]string{"rms_norm_eps": "1e-5"},
		Read:     readHunyuan,
		Layer:    hunyuanLayer,
	})
}

func readHunyuan(f *model.Fields, c *model.Config) {
	c.Tied = f.Bool("tie_word_embeddings", false)
	c.QKVBias = f.Bool("attention_bias", false)
	c.OutBias = c.QKVBias
	c.QKNorm, c.QKNormOf = true, model.OfRotatedHeads
	f.ReadActivation("hidden_act", "silu")
	if alpha, theta := alpha(f); alpha > 0 {
		if c.HeadDim < 6 {
			f.Refuse("head_dim", "%d: a rotation with alpha needs at least 6", c.HeadDim)
			return
		}
		c.Rope = rotary.Rope{Theta: raisedBase(theta, alpha, c.HeadDim)}
		f.RefuseRotary(c, theta)
		return
	}
	model.ReadRope(f, c, 10000)
}

// alpha reads the factor and the base of a rotation that the files call dynamic. It returns 0 for other
// kinds.
func alpha(f *model.Fields) (alpha, theta float64) {
	theta = f.Number("rope_theta", 10000, 2, model.MaxTheta)
	for _, key := range []string{"rope_scaling", "rope_parameters"} {
		in := f.Object(key)
		if in == nil || !in.Has("alpha") || in.Text("rope_type", in.Text("type", "")) != "dynamic" {
			continue
		}
		alpha = in.Number("alpha", 0, 1, 1e6)
		theta = in.Number("rope_theta", theta, 2, model.MaxTheta)
		f.Take(in)
	}
	return alpha, theta
}

// raisedBase is theta alpha^(dim/(dim-2)), which is theta alpha / alpha^(-2/(dim-2)).
func raisedBase(theta, alpha float64, dim int) float64 {
	return theta * alpha / rotary.Powers(alpha, dim-2)[2]
}

func hunyuanLayer(c *model.Config, i int) model.LayerSpec {
	l := model.DecoderLayer(c, i)
	p := fmt.Sprintf("model.layers.%d.self_attn.", i)
	l.QNorm, l.KNorm = p+"query_layernorm.weight", p+"key_layernorm.weight"
	return l
}
