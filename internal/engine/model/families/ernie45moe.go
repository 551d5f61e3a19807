package families

import (
	"fmt"
	"strings"

	"github.com/shoal-llm/shoal/internal/engine/model"
)

// ERNIE 4.5 with experts (Baidu, 2025): the attention of ernie45.go, and in most layers the experts of
// moe.go and shared ones. A token's experts have the largest sums of softmax and correction bias:
//
//	p = softmax(Router h)                                 (experts)
//	w = p of the PerToken largest of p + Bias, divided by max(their sum, moe_norm_min)
func init() {
	model.Register(model.Family{
		Name:     "Ernie4_5_MoeForCausalLM",
		Defaults: map[string]string{"num_key_value_heads": "4", "rms_norm_eps": "1e-5", "max_position_embeddings": "131072"},
		Aliases:  map[string]string{"moe_num_experts": "num_experts", "moe_k": "num_experts_per_tok"},
		Read:     readErnie45MoE,
		Layer:    ernie45MoELayer,
		Beyond:   func(_ *model.Config, name string) bool { return strings.HasPrefix(name, "model.mtp_") }, // predictions of further tokens
	})
}

func readErnie45MoE(f *model.Fields, c *model.Config) {
	f.MustBe("use_bias", false)
	readErnie45(f, c)
	c.MoE = model.MoE{
		Experts:  f.Size("moe_num_experts", 64, model.MaxExperts),
		PerToken: f.Size("moe_k", 6, model.MaxExperts),
		FFN:      f.Size("moe_intermediate_size", 1536, model.MaxFFN),
		Router: model.Router{Score: model.Softmax, Normalise: true,
			MinSum: float32(f.Number("moe_norm_min", 1e-12, 1e-30, 1)), Scale: 1, Bias: true},
	}
	c.MoE.Shared = f.Index("moe_num_shared_experts", 2, model.MaxExperts) * c.MoE.FFN
	first, step, last := f.Index("moe_layer_start_index", 1, model.MaxLayers), f.Size("moe_layer_interval", 1, model.MaxLayers), c.Layers-1
	if f.Number("moe_layer_end_index", -1, -1, model.MaxLayers) >= 0 { // -1: the last layer
		last = f.Index("moe_layer_end_index", 0, model.MaxLayers)
	}
	for i := range c.Layers {
		if i < first || i > last || (i+1)%step != 0 {
			c.MoE.Dense = append(c.MoE.Dense, i)
		}
	}
	model.CheckMoE(f, c, "moe_num_experts", "moe_k", "", "")
}

func ernie45MoELayer(c *model.Config, i int) model.LayerSpec {
	l := model.DecoderLayer(c, i)
	if l.Experts != nil {
		l.Experts.Bias = fmt.Sprintf("model.layers.%d.mlp.moe_statics.e_score_correction_bias", i)
	}
	return l
}
