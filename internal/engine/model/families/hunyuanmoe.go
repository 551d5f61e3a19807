package families

import (
	"fmt"

	"github.com/shoal-llm/shoal/internal/engine/model"
)

// Hunyuan with experts (A13B; Tencent, 2025): the attention of hunyuan.go, and in every layer the
// experts of mixtral.go and a shared one. Settings of the experts may be lists by layer, whose
// entries must be equal.
func init() {
	model.Register(model.Family{
		Name:     "HunYuanMoEV1ForCausalLM",
		Defaults: map[string]string{"rms_norm_eps": "1e-5"},
		Aliases:  map[string]string{"num_experts": "num_local_experts", "moe_topk": "num_experts_per_tok"},
		Read:     readHunyuanMoE,
		Layer:    hunyuanMoELayer,
	})
}

func readHunyuanMoE(f *model.Fields, c *model.Config) {
	readHunyuan(f, c)
	for _, key := range []string{"use_cla", "use_mla", "mlp_bias"} {
		f.MustBe(key, false)
	}
	for _, key := range []string{"use_qk_norm", "use_mixed_mlp_moe"} {
		f.MustBe(key, true)
	}
	if n := f.Index("moe_layer_num_skipped", 0, model.MaxLayers); n != 0 {
		f.Refuse("moe_layer_num_skipped", "%d: every layer has experts here, which is 0", n)
	}
	for _, key := range []string{"num_experts", "moe_topk", "moe_intermediate_size", "num_shared_expert"} {
		f.Uniform(key)
	}
	c.MoE = model.MoE{
		Experts:  f.Size("num_experts", 1, model.MaxExperts),
		PerToken: f.Size("moe_topk", 1, model.MaxExperts),
		FFN:      f.Size("moe_intermediate_size", c.FFN, model.MaxFFN),
		Router:   model.Router{Score: model.Softmax, Normalise: true, Scale: 1},
	}
	c.MoE.Shared = f.Size("num_shared_expert", 1, model.MaxExperts) * c.MoE.FFN
	model.CheckMoE(f, c, "num_experts", "moe_topk", "", "")
}

func hunyuanMoELayer(c *model.Config, i int) model.LayerSpec {
	l := hunyuanLayer(c, i)
	p := fmt.Sprintf("model.layers.%d.mlp.", i)
	l.Experts.Router = p + "gate.wg.weight"
	l.Experts.Share(p + "shared_mlp")
	return l
}
