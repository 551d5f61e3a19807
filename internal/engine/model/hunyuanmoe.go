package model

import "fmt"

// Hunyuan with experts (A13B; Tencent, 2025): the attention of hunyuan.go, and in every layer the
// experts of mixtral.go and a shared one. Settings of the experts may be lists by layer, whose
// entries must be equal.
func init() {
	register(architecture{
		Name:     "HunYuanMoEV1ForCausalLM",
		defaults: map[string]string{"rms_norm_eps": "1e-5"},
		read:     readHunyuanMoE,
		layer:    hunyuanMoELayer,
		extra:    llamaExtra,
	})
}

func readHunyuanMoE(f *fields, c *Config) {
	readHunyuan(f, c)
	for _, key := range []string{"use_cla", "use_mla", "mlp_bias"} {
		f.must(key, false)
	}
	for _, key := range []string{"use_qk_norm", "use_mixed_mlp_moe"} {
		f.must(key, true)
	}
	if n := f.Index("moe_layer_num_skipped", 0, maxLayers); n != 0 {
		f.fail("moe_layer_num_skipped", ErrUnsupported, "%d: every layer has experts here, which is 0", n)
	}
	for _, key := range []string{"num_experts", "moe_topk", "moe_intermediate_size", "num_shared_expert"} {
		f.uniform(key)
	}
	c.MoE = MoE{
		Experts:  f.Size("num_experts", 1, maxExperts),
		PerToken: f.Size("moe_topk", 1, maxExperts),
		FFN:      f.Size("moe_intermediate_size", c.FFN, maxFFN),
		Router:   Router{Score: Softmax, Normalise: true, Scale: 1},
	}
	c.MoE.Shared = f.Size("num_shared_expert", 1, maxExperts) * c.MoE.FFN
	checkMoE(f, c, "num_experts", "moe_topk", "", "")
}

func hunyuanMoELayer(c *Config, i int) LayerSpec {
	l := hunyuanLayer(c, i)
	p := fmt.Sprintf("model.layers.%d.mlp.", i)
	l.Experts.Router = p + "gate.wg.weight"
	l.Experts.shareMLP(p)
	return l
}
