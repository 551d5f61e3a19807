package model

import "fmt"

// Mixtral (Jiang et al., arXiv 2401.04088): Mistral's attention, and in every layer the experts of
// moe.go, without a shared expert:
//
//	w = softmax of the PerToken largest of Router h
//
// This is the softmax over all experts, divided by the sum over the chosen ones. w1 is the gate, w3
// up, w2 down.
func init() {
	register(architecture{
		Name:     "MixtralForCausalLM",
		defaults: map[string]string{"num_key_value_heads": "8", "rms_norm_eps": "1e-5"},
		read:     readMixtral,
		layer:    mixtralLayer,
		extra:    llamaExtra,
	})
}

func readMixtral(f *fields, c *Config) {
	c.Tied = f.Bool("tie_word_embeddings", false)
	defaultPositions(f, c, 131072)
	readRope(f, c, 1e6)
	f.activation("hidden_act", "silu")
	if f.has("sliding_window") { // null or missing: none
		readWindows(f, c, maxPositions, func(int) bool { return true })
		c.dropIdle()
	}
	c.MoE = MoE{
		Experts:  f.Size("num_local_experts", 8, maxExperts),
		PerToken: f.Size("num_experts_per_tok", 2, maxExperts),
		FFN:      c.FFN,
		Router:   Router{Score: Softmax, Normalise: true, Scale: 1},
	}
	checkMoE(f, c, "num_local_experts", "num_experts_per_tok", "", "")
}

func mixtralLayer(c *Config, i int) LayerSpec {
	l := llamaLayer(c, i)
	p := fmt.Sprintf("model.layers.%d.block_sparse_moe.", i)
	l.Experts = &MoENames{Router: p + "gate.weight", expert: p + "experts.", gate: "w1.weight", up: "w3.weight", down: "w2.weight"}
	return l
}
