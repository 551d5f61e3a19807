package model

// OLMoE (Muennighoff et al., arXiv 2409.02060). Differences from llama.go: the norms of queries and
// keys span all heads of a token, as in olmo2.go, and every layer has the experts of qwen3moe.go.
func init() {
	register(architecture{
		Name:     "OlmoeForCausalLM",
		defaults: map[string]string{"rms_norm_eps": "1e-5", "max_position_embeddings": "4096"},
		read:     readOlmoe,
		layer:    llamaLayer,
		extra:    llamaExtra,
	})
}

func readOlmoe(f *fields, c *Config) {
	readOlmo(f, c)
	readRope(f, c, 10000)
	if f.has("clip_qkv") {
		f.fail("clip_qkv", ErrUnsupported, "%s: queries, keys and values with a limit are not implemented; only null is", clip(string(f.raw["clip_qkv"])))
	}
	experts := f.either("num_experts", "num_local_experts")
	c.MoE = MoE{
		Experts:  f.Size(experts, 64, maxExperts),
		PerToken: f.Size("num_experts_per_tok", 8, maxExperts),
		FFN:      c.FFN,
		Router:   Router{Score: Softmax, Normalise: f.Bool("norm_topk_prob", false), Scale: 1},
	}
	checkMoE(f, c, experts, "num_experts_per_tok", "", "")
}
