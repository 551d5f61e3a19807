package families

import "github.com/shoal-llm/shoal/internal/engine/model"

// GLM-4.5, 4.6 and 4.7 (Z.ai, arXiv 2508.06471). Differences from llama.go: the first half of a head
// rotates. attention_bias puts a bias on query, key and value. With use_qk_norm every head of queries
// and keys is normalised before rotation. The later layers have DeepSeek V3's experts (deepseek.go,
// moe.go). Further layers, for multi-token prediction, are not read.
func init() {
	model.Register(model.Family{
		Name: "Glm4MoeForCausalLM",
		Defaults: map[string]string{"num_key_value_heads": "8", "rms_norm_eps": "1e-5", "max_position_embeddings": "131072",
			"n_routed_experts": "128", "moe_intermediate_size": "1408",
			"n_group": "1", "topk_group": "1", "routed_scaling_factor": "1", "first_k_dense_replace": "1"},
		Aliases: routedExperts,
		Rotary:  []string{model.PartialKey},
		Read:    readGLM4MoE,
		Beyond:  model.AfterLast,
	})
}

func readGLM4MoE(f *model.Fields, c *model.Config) {
	c.Tied = f.Bool("tie_word_embeddings", false)
	c.QKVBias = f.Bool("attention_bias", false)
	c.QKNorm = f.Bool("use_qk_norm", false)
	c.ReadRotated(f, 0.5)
	model.ReadRope(f, c, 10000)
	f.ReadActivation("hidden_act", "silu")
	readDeepseekExperts(f, c, true)
}
