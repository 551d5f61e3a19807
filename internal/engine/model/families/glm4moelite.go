package families

import "github.com/shoal-llm/shoal/internal/engine/model"

// GLM-4.7-Flash (Z.ai, 2026): DeepSeek V3's latent attention and experts, see deepseek.go, with
// other sizes and without groups of experts. mlp_layer_types names the dense layers.
func init() {
	model.Register(model.Family{
		Name: "Glm4MoeLiteForCausalLM",
		Defaults: map[string]string{"rms_norm_eps": "1e-5", "max_position_embeddings": "202752", "n_routed_experts": "64",
			"num_experts_per_tok": "4", "moe_intermediate_size": "1536",
			"n_group": "1", "topk_group": "1", "routed_scaling_factor": "1.8", "first_k_dense_replace": "1",
			"qk_nope_head_dim": "192", "v_head_dim": "256"},
		Aliases: routedExperts,
		Read: func(f *model.Fields, c *model.Config) {
			readDeepseek(f, c)
			readLayerKinds(f, c)
		},
		Layer:  deepseekLayer,
		Latent: true,
		Beyond: model.AfterLast,
	})
}

// readLayerKinds reads which layers are dense from mlp_layer_types, if it is there.
func readLayerKinds(f *model.Fields, c *model.Config) {
	var kinds []string
	if !f.Get("mlp_layer_types", &kinds, "a list of names") {
		return
	}
	if len(kinds) != c.Layers {
		f.Fail("mlp_layer_types", model.ErrFormat, "%d entries for %d layers", len(kinds), c.Layers)
		return
	}
	c.MoE.Dense = nil
	for i, k := range kinds {
		switch k {
		case "dense":
			c.MoE.Dense = append(c.MoE.Dense, i)
		case "sparse":
		default:
			f.Refuse("mlp_layer_types", "layer %d: %q is not supported; known: dense, sparse", i, model.Clip(k))
		}
	}
}
