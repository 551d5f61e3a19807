package families

import "github.com/shoal-llm/shoal/internal/engine/model"

// Ministral 3 and Devstral 2 (Mistral AI, 2025): the equations of llama.go, with queries that grow
// with their position, as Llama 4's do, after their rotation:
//
//	q = RoPE(q) * (1 + beta ln(1 + floor(position / original)))
//
// beta is llama_4_scaling_beta, original is YaRN's original_max_position_embeddings.
func init() {
	model.Register(model.Family{
		Name:     "Ministral3ForCausalLM",
		Defaults: map[string]string{"rms_norm_eps": "1e-5", "max_position_embeddings": "262144", "num_key_value_heads": "8", "head_dim": "128"},
		Rotary:   []string{model.GrowthKey},
		Read:     readMinistral3,
	})
}

func readMinistral3(f *model.Fields, c *model.Config) {
	c.Tied = f.Bool("tie_word_embeddings", false)
	for _, key := range []string{"rope_parameters", "rope_scaling"} {
		if p := f.Object(key); p != nil && p.Has(model.GrowthKey) {
			before := c.Growth
			c.Growth = model.Growth{Beta: float32(p.Number(model.GrowthKey, 0, 0, 100)),
				Original: p.Size("original_max_position_embeddings", 0, model.MaxPositions)}
			if before != (model.Growth{}) && c.Growth != before {
				p.Fail(model.GrowthKey, model.ErrFormat, "%g differs from the %g in rope_parameters; keep one of them", c.Growth.Beta, before.Beta)
			}
			f.Take(p)
		}
	}
	if !f.Has("rope_parameters") && !f.Has("rope_scaling") {
		f.Fail("rope_parameters", model.ErrMissing, "missing")
	}
	model.ReadRope(f, c, 1e6)
	f.ReadActivation("hidden_act", "silu")
	if f.Has("sliding_window") { // null or missing: none
		model.ReadWindows(f, c, model.MaxPositions, func(int) bool { return true })
		c.DropIdleWindows()
	}
}
