package families

import "github.com/shoal-llm/shoal/internal/engine/model"

// Qwen3 with experts (Yang et al., arXiv 2505.09388): the attention of qwen3.go, and the experts of
// moe.go without a shared expert:
//
//	p = softmax(Router h)                                 (experts)
//	w = p of the PerToken largest, divided by their sum if norm_topk_prob
//
// The layers in mlp_only_layers are dense with intermediate_size. With decoder_sparse_step s, so
// are all except every s-th.
func init() {
	model.Register(model.Family{
		Name:     qwen3Moe,
		Defaults: map[string]string{"num_key_value_heads": "4"},
		Read:     readQwen3Moe,
	})
}

const qwen3Moe = "Qwen3MoeForCausalLM"

func readQwen3Moe(f *model.Fields, c *model.Config) {
	readQwen3(f, c)
	if !f.Has("head_dim") {
		c.HeadDim = c.Hidden / max(1, c.Heads) // its configuration class, unlike the dense one's, has no default
	}
	experts := f.Either("num_experts", "num_local_experts") // as transformers 5 may write it
	c.MoE = model.MoE{
		Experts:  f.Size(experts, 128, model.MaxExperts),
		PerToken: f.Size("num_experts_per_tok", 8, model.MaxExperts),
		FFN:      f.Size("moe_intermediate_size", 768, model.MaxFFN),
		Router:   model.Router{Score: model.Softmax, Normalise: f.Bool("norm_topk_prob", false), Scale: 1},
		Dense:    model.DenseLayers(c.Layers, f.Size("decoder_sparse_step", 1, model.MaxLayers), f.Layers("mlp_only_layers", c.Layers)),
	}
	model.CheckMoE(f, c, experts, "num_experts_per_tok", "", "")
}
