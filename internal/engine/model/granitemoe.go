package model

import "fmt"

// Granite 3 with experts (IBM): the multipliers of granite.go, and in every layer the experts of
// moe.go, whose weights are the softmax over the chosen experts' scores. Files stack the matrices:
//
//	input_linear (experts, 2*ffn, hidden), gate first; output_linear (experts, hidden, ffn)
func init() {
	register(architecture{
		Name:  "GraniteMoeForCausalLM",
		read:  readGraniteMoE,
		layer: graniteMoELayer,
		extra: llamaExtra,
	})
}

func readGraniteMoE(f *fields, c *Config) {
	readGranite(f, c)
	c.MoE = MoE{
		Experts:  f.Size("num_local_experts", 8, maxExperts),
		PerToken: f.Size("num_experts_per_tok", 2, maxExperts),
		FFN:      c.FFN,
		Router:   Router{Score: SoftmaxOfChosen, Scale: 1},
	}
	checkMoE(f, c, "num_local_experts", "num_experts_per_tok", "", "")
}

func graniteMoELayer(c *Config, i int) LayerSpec {
	l := llamaLayer(c, i)
	p := fmt.Sprintf("model.layers.%d.block_sparse_moe.", i)
	l.Experts = mlpExperts(p)
	l.Experts.Router, l.Experts.gateUps, l.Experts.downs = p+"router.layer.weight", p+"input_linear.weight", p+"output_linear.weight"
	return l
}
