package families

import (
	"fmt"

	"github.com/shoal-llm/shoal/internal/engine/model"
)

// GLM-4 (GLM Team, arXiv 2406.12793; GLM-4-0414 and GLM-Z1, 2025). Differences from llama.go:
//
//	q, k, v = Q h + q0, K h + k0, V h + v0
//	q, k = RoPE(q), RoPE(k)                               the first part of each head, pairs (2i, 2i+1)
//	x += RMSNorm(O attention(q, k, v), PostAttnNorm)      Glm4ForCausalLM; GlmForCausalLM has no such norms
//	[g | u] = GateUp RMSNorm(x, MLPNorm)
//	x += RMSNorm(Down (SiLU(g) * u), PostMLPNorm)
func init() {
	for name, layer := range map[string]func(*model.Config, int) model.LayerSpec{"Glm4ForCausalLM": glm4Layer, "GlmForCausalLM": glmLayer} {
		model.Register(model.Family{
			Name: name,
			Defaults: map[string]string{"rms_norm_eps": "1.5625e-7", "max_position_embeddings": "131072",
				"head_dim": "128", "num_key_value_heads": "2"},
			Rotary: []string{model.PartialKey},
			Read:   readGLM4,
			Layer:  layer,
		})
	}
}

func readGLM4(f *model.Fields, c *model.Config) {
	c.Tied = f.Bool("tie_word_embeddings", false)
	c.QKVBias = f.Bool("attention_bias", true)
	c.Neighbours = true
	c.ReadRotated(f, 0.5)
	model.ReadRope(f, c, 10000)
	f.ReadActivation("hidden_act", "silu")
}

func glmLayer(c *model.Config, i int) model.LayerSpec {
	l := model.DecoderLayer(c, i)
	fuseGateUp(&l, c, i)
	return l
}

func glm4Layer(c *model.Config, i int) model.LayerSpec {
	l := glmLayer(c, i)
	p := fmt.Sprintf("model.layers.%d.", i)
	l.PostAttnNorm, l.PostFFNNorm = p+"post_self_attn_layernorm.weight", p+"post_mlp_layernorm.weight"
	return l
}

// fuseGateUp reads gate and up from one matrix, gate first.
func fuseGateUp(l *model.LayerSpec, c *model.Config, i int) {
	l.Gate = model.Linear{Weight: fmt.Sprintf("model.layers.%d.mlp.gate_up_proj.weight", i), Of: 2 * c.FFN}
	l.Up = l.Gate
	l.Up.First = c.FFN
}
