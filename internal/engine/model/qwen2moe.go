package model

import "fmt"

// Qwen1.5 and Qwen2 with experts (Yang et al., arXiv 2407.10671): the attention of qwen2.go, the
// router of qwen3moe.go, and a shared expert whose output is multiplied by a sigmoid:
//
//	y = sigmoid(SharedFactor h) * Shared(h) + sum over chosen e
func init() {
	register(architecture{
		Name:     qwen2Moe,
		defaults: map[string]string{"num_key_value_heads": "16"},
		read:     readQwen2Moe,
		layer:    qwen2MoeLayer,
		extra:    llamaExtra,
	})
}

const qwen2Moe = "Qwen2MoeForCausalLM"

func readQwen2Moe(f *fields, c *Config) {
	c.QKVBias = f.Bool("qkv_bias", true)
	readQwen(f, c)
	c.MoE = MoE{
		Experts:  f.Size("num_experts", 60, maxExperts),
		PerToken: f.Size("num_experts_per_tok", 4, maxExperts),
		FFN:      f.Size("moe_intermediate_size", 1408, maxFFN),
		Shared:   f.Size("shared_expert_intermediate_size", 5632, maxFFN),
		Gated:    true,
		Router:   Router{Score: Softmax, Normalise: f.Bool("norm_topk_prob", false), Scale: 1},
		Dense:    denseLayers(c.Layers, f.Size("decoder_sparse_step", 1, maxLayers), f.Layers("mlp_only_layers", c.Layers)),
	}
	checkMoE(f, c, "num_experts", "num_experts_per_tok", "", "")
}

func qwen2MoeLayer(c *Config, i int) LayerSpec {
	l := llamaLayer(c, i)
	if l.Experts != nil {
		l.Experts.gateShared(fmt.Sprintf("model.layers.%d.mlp.", i))
	}
	return l
}

// gateShared names a shared expert with a factor, as Qwen does.
func (n *MoENames) gateShared(mlp string) {
	n.SharedGate, n.SharedUp, n.SharedDown = mlp+"shared_expert.gate_proj.weight", mlp+"shared_expert.up_proj.weight", mlp+"shared_expert.down_proj.weight"
	n.SharedFactor = mlp + "shared_expert_gate.weight"
}
