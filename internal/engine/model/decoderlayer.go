package model

import (
	"fmt"
	"strconv"
	"strings"
)

// DecoderLayer also serves families that vary Llama only by biases, windows and experts. The other
// families start from it.
func DecoderLayer(c *Config, i int) LayerSpec {
	p := fmt.Sprintf("model.layers.%d.", i)
	l := LayerSpec{
		AttnNorm: p + "input_layernorm.weight",
		Q:        Projection(p+"self_attn.q_proj", c.QKVBias),
		K:        Projection(p+"self_attn.k_proj", c.QKVBias),
		V:        Projection(p+"self_attn.v_proj", c.QKVBias),
		O:        Projection(p+"self_attn.o_proj", c.OutBias),
		FFNNorm:  p + "post_attention_layernorm.weight",
		Gate:     Projection(p+"mlp.gate_proj", c.MLPBias),
		Up:       Projection(p+"mlp.up_proj", c.MLPBias),
		Down:     Projection(p+"mlp.down_proj", c.MLPBias),

		Window: c.Window(i), Rope: c.RopeOf(i), Grows: c.Growth.Beta != 0 && !c.Growth.Unrotated,
		Activation: c.Activation, NormsAddOne: c.NormsAddOne,
	}
	l.Q.Order = c.HeadOrder()
	l.K.Order = l.Q.Order
	if c.QKNorm {
		l.QNorm, l.KNorm = p+"self_attn.q_norm.weight", p+"self_attn.k_norm.weight"
	}
	if c.Sparse(i) {
		l.Experts = MLPExperts(p + "mlp.")
	}
	return l
}

// DecoderExtra allows tensors of older exports: the rotary frequencies (computed here), a copy of the embedding as
// a tied head, and anything outside the decoder. Any other tensor inside it (a bias, a norm, an
// extra layer) means that the config describes another model.
func DecoderExtra(name string) bool {
	return strings.HasSuffix(name, ".rotary_emb.inv_freq") || name == Head ||
		!strings.HasPrefix(name, "model.") && !strings.HasPrefix(name, "lm_head.")
}

// AfterLast allows the layers after the last, which predict further tokens (V3, section 2.2)
// and do not change the next one.
func AfterLast(c *Config, name string) bool {
	rest, ok := strings.CutPrefix(name, "model.layers.")
	if !ok {
		return false
	}
	number, _, _ := strings.Cut(rest, ".")
	i, err := strconv.Atoi(number)
	return err == nil && i >= c.Layers && i < c.Layers+maxExtraLayers
}

// maxExtraLayers bounds the layers of multi-token prediction. Published models have one.
const maxExtraLayers = 8
