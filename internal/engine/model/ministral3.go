package model

// Ministral 3 and Devstral 2 (Mistral AI, 2025): the equations of llama.go, with queries that grow
// with their position, as Llama 4's do, after their rotation:
//
//	q = RoPE(q) * (1 + beta ln(1 + floor(position / original)))
//
// beta is llama_4_scaling_beta, original is YaRN's original_max_position_embeddings.
func init() {
	register(architecture{
		Name:     "Ministral3ForCausalLM",
		defaults: map[string]string{"rms_norm_eps": "1e-5", "max_position_embeddings": "262144", "num_key_value_heads": "8", "head_dim": "128"},
		rotary:   []string{growthKey},
		read:     readMinistral3,
		layer:    llamaLayer,
		extra:    llamaExtra,
	})
}

// growthKey is the setting of queries that grow.
const growthKey = "llama_4_scaling_beta"

// Growth is a factor of queries: 1 + Beta ln(1 + floor(position / Original)).
type Growth struct {
	Beta      float32 // 0: none
	Original  int     // in tokens
	Next      bool    `json:",omitempty"` // the position counts from 1
	Unrotated bool    `json:",omitempty"` // only in layers that do not rotate
}

func readMinistral3(f *fields, c *Config) {
	c.Tied = f.Bool("tie_word_embeddings", false)
	for _, key := range []string{"rope_parameters", "rope_scaling"} {
		if p := f.Object(key); p != nil && p.has(growthKey) {
			before := c.Growth
			c.Growth = Growth{Beta: float32(p.Number(growthKey, 0, 0, 100)), Original: p.Size("original_max_position_embeddings", 0, maxPositions)}
			if before != (Growth{}) && c.Growth != before {
				p.fail(growthKey, ErrFormat, "%g differs from the %g in rope_parameters; keep one of them", c.Growth.Beta, before.Beta)
			}
			f.take(p)
		}
	}
	if !f.has("rope_parameters") && !f.has("rope_scaling") {
		f.fail("rope_parameters", ErrMissing, "missing")
	}
	readRope(f, c, 1e6)
	f.activation("hidden_act", "silu")
	if f.has("sliding_window") { // null or missing: none
		readWindows(f, c, maxPositions, func(int) bool { return true })
		c.dropIdle()
	}
}
