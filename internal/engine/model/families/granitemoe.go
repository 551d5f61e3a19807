package families

import (
	"fmt"

	"github.com/shoal-llm/shoal/internal/engine/model"
)

// Granite 3 with experts (IBM): the multipliers of granite.go, and in every layer the experts of
// moe.go, whose weights are the softmax over the chosen experts' scores. Files stack the matrices:
//
//	input_linear (experts, 2*ffn, hidden), gate first; output_linear (experts, hidden, ffn)
func init() {
	model.Register(model.Family{
		Name:  "GraniteMoeForCausalLM",
		Read:  readGraniteMoE,
		Layer: graniteMoELayer,
	})
}

func readGraniteMoE(f *model.Fields, c *model.Config) {
	readGranite(f, c)
	c.MoE = model.MoE{
		Experts:  f.Size("num_local_experts", 8, model.MaxExperts),
		PerToken: f.Size("num_experts_per_tok", 2, model.MaxExperts),
		FFN:      c.FFN,
		Router:   model.Router{Score: model.SoftmaxOfChosen, Scale: 1},
	}
	model.CheckMoE(f, c, "num_local_experts", "num_experts_per_tok", "", "")
}

func graniteMoELayer(c *model.Config, i int) model.LayerSpec {
	l := model.DecoderLayer(c, i)
	p := fmt.Sprintf("model.layers.%d.block_sparse_moe.", i)
	l.Experts = model.MLPExperts(p)
	l.Experts.Router, l.Experts.GateUps, l.Experts.Downs = p+"router.layer.weight", p+"input_linear.weight", p+"output_linear.weight"
	return l
}
