package model

// Qwen3 with experts (Yang et al., arXiv 2505.09388): the attention of qwen3.go, and the experts of
// moe.go without a shared expert:
//
//	p = softmax(Router h)                                 (experts)
//	w = p of the PerToken largest, divided by their sum if norm_topk_prob
//
// The layers in mlp_only_layers are dense with intermediate_size. With decoder_sparse_step s, so
// are all except every s-th.
func init() {
	register(architecture{
		Name:     qwen3Moe,
		defaults: map[string]string{"num_key_value_heads": "4"},
		read:     readQwen3Moe,
		layer:    llamaLayer,
		extra:    llamaExtra,
	})
}

const qwen3Moe = "Qwen3MoeForCausalLM"

func readQwen3Moe(f *fields, c *Config) {
	readQwen3(f, c)
	if !f.has("head_dim") {
		c.HeadDim = c.Hidden / max(1, c.Heads) // its configuration class, unlike the dense one's, has no default
	}
	experts := f.either("num_experts", "num_local_experts") // as transformers 5 may write it
	c.MoE = MoE{
		Experts:  f.Size(experts, 128, maxExperts),
		PerToken: f.Size("num_experts_per_tok", 8, maxExperts),
		FFN:      f.Size("moe_intermediate_size", 768, maxFFN),
		Router:   Router{Score: Softmax, Normalise: f.Bool("norm_topk_prob", false), Scale: 1},
		Dense:    denseLayers(c.Layers, f.Size("decoder_sparse_step", 1, maxLayers), f.Layers("mlp_only_layers", c.Layers)),
	}
	checkMoE(f, c, experts, "num_experts_per_tok", "", "")
}
