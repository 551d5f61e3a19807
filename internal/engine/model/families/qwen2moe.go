package families

import (
	"fmt"

	"github.com/shoal-llm/shoal/internal/engine/model"
)

// Qwen1.5 and Qwen2 with experts (Yang et al., arXiv 2407.10671): the attention of qwen2.go, the
// router of qwen3moe.go, and a shared expert whose output is multiplied by a sigmoid:
//
//	y = sigmoid(SharedFactor h) * Shared(h) + sum over chosen e
func init() {
	model.Register(model.Family{
		Name:     qwen2Moe,
		Defaults: map[string]string{"num_key_value_heads": "16"},
		Read:     readQwen2Moe,
		Layer:    qwen2MoeLayer,
	})
}

const qwen2Moe = "Qwen2MoeForCausalLM"

func readQwen2Moe(f *model.Fields, c *model.Config) {
	c.QKVBias = f.Bool("qkv_bias", true)
	readQwen(f, c)
	c.MoE = model.MoE{
		Experts:  f.Size("num_experts", 60, model.MaxExperts),
		PerToken: f.Size("num_experts_per_tok", 4, model.MaxExperts),
		FFN:      f.Size("moe_intermediate_size", 1408, model.MaxFFN),
		Shared:   f.Size("shared_expert_intermediate_size", 5632, model.MaxFFN),
		Gated:    true,
		Router:   model.Router{Score: model.Softmax, Normalise: f.Bool("norm_topk_prob", false), Scale: 1},
		Dense:    model.DenseLayers(c.Layers, f.Size("decoder_sparse_step", 1, model.MaxLayers), f.Layers("mlp_only_layers", c.Layers)),
	}
	model.CheckMoE(f, c, "num_experts", "num_experts_per_tok", "", "")
}

func qwen2MoeLayer(c *model.Config, i int) model.LayerSpec {
	l := model.DecoderLayer(c, i)
	if l.Experts != nil {
		gateShared(l.Experts, fmt.Sprintf("model.layers.%d.mlp.", i))
	}
	return l
}

// gateShared names a shared expert with a factor, as Qwen does.
func gateShared(n *model.MoENames, mlp string) {
	n.Share(mlp + "shared_expert")
	n.SharedFactor = mlp + "shared_expert_gate.weight"
}
