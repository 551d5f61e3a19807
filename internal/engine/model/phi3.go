package model

import "fmt"

// Phi-3 and Phi-4 (Microsoft, arXiv 2404.14219, 2412.08905): the equations of llama.go, with
// projections of the same input stored as one matrix:
//
//	[q | k | v] = QKV h                                   (heads*dim + 2 kv*dim)
//	[g | u] = GateUp h                                    (ffn + ffn)
//
// sliding_window applies to all layers. Variants with a long context have two lists of rotary
// factors (longrope.go), and Phi-4-mini rotates three quarters of each head.
func init() {
	register(architecture{
		Name:     "Phi3ForCausalLM",
		defaults: map[string]string{"rms_norm_eps": "1e-5", "max_position_embeddings": "4096"},
		read:     readPhi3,
		layer:    phi3Layer,
		extra:    llamaExtra,
		rotary:   []string{partialKey, "short_factor", "long_factor"},
	})
}

func readPhi3(f *fields, c *Config) {
	c.Tied = f.Bool("tie_word_embeddings", false)
	c.readRotated(f, 1)
	readRope(f, c, 10000)
	f.activation("hidden_act", "silu")
	if f.has("sliding_window") { // null or missing: none
		readWindows(f, c, maxPositions, func(int) bool { return true })
		c.dropIdle()
	}
}

func phi3Layer(c *Config, i int) LayerSpec {
	l := llamaLayer(c, i)
	p := fmt.Sprintf("model.layers.%d.", i)
	q, kv := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	qkv := Linear{Weight: p + "self_attn.qkv_proj.weight", Of: q + 2*kv, Order: c.headOrder()}
	l.Q, l.K, l.V = qkv, qkv, qkv
	l.K.First, l.V.First, l.V.Order = q, q+kv, Order{}
	l.fuseGateUp(c, i)
	return l
}
