package families

import (
	"fmt"

	"github.com/shoal-llm/shoal/internal/engine/model"
)

// Hy3 (Tencent, 2026): the attention of qwen3.go, and except in the first layer DeepSeek V3's experts
// without groups (deepseek.go) and shared ones. mlp_layer_types names the dense layers.
func init() {
	model.Register(model.Family{
		Name:     "HYV3ForCausalLM",
		Defaults: map[string]string{"num_key_value_heads": "8", "rms_norm_eps": "1e-5", "max_position_embeddings": "131072", "head_dim": "128"},
		Read:     readHYV3,
		Layer:    hyV3Layer,
		Beyond:   model.AfterLast,
	})
}

func readHYV3(f *model.Fields, c *model.Config) {
	c.Tied = f.Bool("tie_word_embeddings", false)
	c.QKVBias = f.Bool("attention_bias", false)
	c.OutBias, c.QKNorm = c.QKVBias, true
	f.ReadActivation("hidden_act", "silu")
	f.MustBe("mlp_bias", false)
	model.ReadRope(f, c, 11158840)
	experts := f.Either("num_experts", "num_local_experts")
	c.MoE = model.MoE{
		Experts:  f.Size(experts, 192, model.MaxExperts),
		PerToken: f.Size("num_experts_per_tok", 8, model.MaxExperts),
		FFN:      f.Size("moe_intermediate_size", 1536, model.MaxFFN),
		Router: model.Router{Score: model.Sigmoid, Normalise: true,
			Scale: float32(f.Number("router_scaling_factor", 2.826, 0, 1e6)), Bias: true},
		Dense: []int{0},
	}
	c.MoE.Shared = f.Index("num_shared_experts", 1, model.MaxExperts) * c.MoE.FFN
	readLayerKinds(f, c)
	model.CheckMoE(f, c, experts, "num_experts_per_tok", "", "")
}

func hyV3Layer(c *model.Config, i int) model.LayerSpec {
	l := model.DecoderLayer(c, i)
	if l.Experts != nil {
		p := fmt.Sprintf("model.layers.%d.mlp.", i)
		l.Experts.Router, l.Experts.Bias = p+"router.gate.weight", p+"expert_bias"
		l.Experts.Share(p + "shared_mlp")
	}
	return l
}
