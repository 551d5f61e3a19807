package families

import "github.com/shoal-llm/shoal/internal/engine/model"

// OLMoE (Muennighoff et al., arXiv 2409.02060). Differences from llama.go: the norms of queries and
// keys span all heads of a token, as in olmo2.go, and every layer has the experts of qwen3moe.go.
func init() {
	model.Register(model.Family{
		Name:     "OlmoeForCausalLM",
		Defaults: map[string]string{"rms_norm_eps": "1e-5", "max_position_embeddings": "4096"},
		Read:     readOlmoe,
	})
}

func readOlmoe(f *model.Fields, c *model.Config) {
	readOlmo(f, c)
	model.ReadRope(f, c, 10000)
	if f.Has("clip_qkv") {
		f.Refuse("clip_qkv", "%s: queries, keys and values with a limit are not implemented; only null is", model.Clip(string(f.Raw["clip_qkv"])))
	}
	experts := f.Either("num_experts", "num_local_experts")
	c.MoE = model.MoE{
		Experts:  f.Size(experts, 64, model.MaxExperts),
		PerToken: f.Size("num_experts_per_tok", 8, model.MaxExperts),
		FFN:      c.FFN,
		Router:   model.Router{Score: model.Softmax, Normalise: f.Bool("norm_topk_prob", false), Scale: 1},
	}
	model.CheckMoE(f, c, experts, "num_experts_per_tok", "", "")
}
