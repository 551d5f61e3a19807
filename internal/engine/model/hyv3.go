package model

import "fmt"

// Hy3 (Tencent, 2026): the attention of qwen3.go, and except in the first layer DeepSeek V3's experts
// without groups (deepseek.go) and shared ones. mlp_layer_types names the dense layers.
func init() {
	register(architecture{
		Name:     "HYV3ForCausalLM",
		defaults: map[string]string{"num_key_value_heads": "8", "rms_norm_eps": "1e-5", "max_position_embeddings": "131072", "head_dim": "128"},
		read:     readHYV3,
		layer:    hyV3Layer,
		extra:    llamaExtra,
		beyond:   deepseekBeyond,
	})
}

func readHYV3(f *fields, c *Config) {
	c.Tied = f.Bool("tie_word_embeddings", false)
	c.QKVBias = f.Bool("attention_bias", false)
	c.OutBias, c.QKNorm = c.QKVBias, true
	f.activation("hidden_act", "silu")
	f.must("mlp_bias", false)
	readRope(f, c, 11158840)
	experts := f.either("num_experts", "num_local_experts")
	c.MoE = MoE{
		Experts:  f.Size(experts, 192, maxExperts),
		PerToken: f.Size("num_experts_per_tok", 8, maxExperts),
		FFN:      f.Size("moe_intermediate_size", 1536, maxFFN),
		Router:   Router{Score: Sigmoid, Normalise: true, Scale: float32(f.Number("router_scaling_factor", 2.826, 0, 1e6)), Bias: true},
		Dense:    []int{0},
	}
	c.MoE.Shared = f.Index("num_shared_experts", 1, maxExperts) * c.MoE.FFN
	readLayerKinds(f, c)
	checkMoE(f, c, experts, "num_experts_per_tok", "", "")
}

func hyV3Layer(c *Config, i int) LayerSpec {
	l := llamaLayer(c, i)
	if l.Experts != nil {
		p := fmt.Sprintf("model.layers.%d.mlp.", i)
		l.Experts.Router, l.Experts.Bias = p+"router.gate.weight", p+"expert_bias"
		l.Experts.shareMLP(p)
	}
	return l
}

// shareMLP names shared experts as Tencent does.
func (n *MoENames) shareMLP(mlp string) {
	n.SharedGate, n.SharedUp, n.SharedDown = mlp+"shared_mlp.gate_proj.weight", mlp+"shared_mlp.up_proj.weight", mlp+"shared_mlp.down_proj.weight"
}
