package families

import (
	"fmt"

	"github.com/shoal-llm/shoal/internal/engine/model"
)

// Mixtral (Jiang et al., arXiv 2401.04088): Mistral's attention, and in every layer the experts of
// moe.go, without a shared expert:
//
//	w = softmax of the PerToken largest of Router h
//
// This is the softmax over all experts, divided by the sum over the chosen ones. w1 is the gate, w3
// up, w2 down.
func init() {
	model.Register(model.Family{
		Name:     "MixtralForCausalLM",
		Defaults: map[string]string{"num_key_value_heads": "8", "rms_norm_eps": "1e-5"},
		Aliases:  map[string]string{"num_local_experts": "num_experts"},
		Read:     readMixtral,
		Layer:    mixtralLayer,
	})
}

func readMixtral(f *model.Fields, c *model.Config) {
	c.Tied = f.Bool("tie_word_embeddings", false)
	defaultPositions(f, c, 131072)
	model.ReadRope(f, c, 1e6)
	f.ReadActivation("hidden_act", "silu")
	if f.Has("sliding_window") { // null or missing: none
		model.ReadWindows(f, c, model.MaxPositions, func(int) bool { return true })
		c.DropIdleWindows()
	}
	c.MoE = model.MoE{
		Experts:  f.Size("num_local_experts", 8, model.MaxExperts),
		PerToken: f.Size("num_experts_per_tok", 2, model.MaxExperts),
		FFN:      c.FFN,
		Router:   model.Router{Score: model.Softmax, Normalise: true, Scale: 1},
	}
	model.CheckMoE(f, c, "num_local_experts", "num_experts_per_tok", "", "")
}

func mixtralLayer(c *model.Config, i int) model.LayerSpec {
	l := model.DecoderLayer(c, i)
	p := fmt.Sprintf("model.layers.%d.block_sparse_moe.", i)
	l.Experts = &model.MoENames{Router: p + "gate.weight", ExpertPrefix: p + "experts.", GatePart: "w1.weight",
		UpPart: "w3.weight", DownPart: "w2.weight"}
	return l
}
