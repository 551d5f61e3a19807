package families

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/model"
)

// Llama 4 (Meta, 2025), the decoder of Scout and Maverick. Differences from llama.go: pairs of
// neighbours rotate; layers that rotate attend within chunks of the text; some layers do not rotate,
// and their queries grow with their position:
//
//	q, k = RoPE(q), RoPE(k)                               position p attends from floor(p/chunk)*chunk on
//	q, k = q/rms(q), k/rms(k)                             each head, in layers that rotate, with use_qk_norm
//	q    = q (1 + attn_scale ln(1 + floor((p+1)/floor_scale)))   in layers that do not rotate
//
// A rotation keeps rms(q), so the norm is computed before it. Every interleave_moe_layer_step-th
// layer has experts, whose input is weighted:
//
//	y = Shared(h) + sum over chosen e of Down_e (SiLU(w_e Gate_e h) * (w_e Up_e h)), w = sigmoid(Router h)
func init() {
	model.Register(model.Family{
		Name: Llama4,
		Defaults: map[string]string{"hidden_size": "5120", "intermediate_size": "8192", "num_hidden_layers": "48", "num_attention_heads": "40",
			"num_key_value_heads": "8", "head_dim": "128",
			"vocab_size": "202048", "max_position_embeddings": "131072", "rms_norm_eps": "1e-5"},
		Rotary: []string{"no_rope_layers"},
		Read:   readLlama4,
		Layer:  llama4Layer,
	})
}

const Llama4 = "Llama4ForCausalLM"

func readLlama4(f *model.Fields, c *model.Config) {
	c.Tied = f.Bool("tie_word_embeddings", false)
	c.QKVBias = f.Bool("attention_bias", false)
	c.OutBias = c.QKVBias
	c.Neighbours = true
	f.ReadActivation("hidden_act", "silu")
	model.ReadRope(f, c, 500000)
	model.ReadUnrotated(f, c, 4)
	c.UnitNorm = f.Bool("use_qk_norm", true)
	if tuned(f) && len(c.Unrotated) > 0 {
		c.Growth = model.Growth{Beta: float32(f.Number("attn_scale", 0.1, 0, 100)), Original: f.Size("floor_scale", 8192, model.MaxPositions),
			Next: true, Unrotated: true}
	}
	chunked := !f.Given("attention_chunk_size") || f.Has("attention_chunk_size") // null: no chunks
	model.ReadSpans(f, c, "chunked_attention", "attention_chunk_size", 8192,
		func(layer int) bool { return chunked && !slices.Contains(c.Unrotated, layer) })
	c.DropIdleWindows()
	c.Chunked = c.Windows != nil
	c.MoE = model.MoE{
		FFN:      c.FFN,
		Shared:   c.FFN,
		PerToken: f.Size("num_experts_per_tok", 1, model.MaxExperts),
		Router:   model.Router{Score: model.SigmoidOfChosen, Scale: 1, OfInput: true},
	}
	c.FFN = f.Size("intermediate_size_mlp", 16384, model.MaxFFN)
	if f.Has("moe_layers") {
		sparse := f.Layers("moe_layers", c.Layers)
		for i := range c.Layers {
			if !slices.Contains(sparse, i) {
				c.MoE.Dense = append(c.MoE.Dense, i)
			}
		}
	} else {
		c.MoE.Dense = model.DenseLayers(c.Layers, f.Size("interleave_moe_layer_step", 1, model.MaxLayers), nil)
	}
	if len(c.MoE.Dense) == c.Layers {
		c.MoE = model.MoE{}
		return
	}
	c.MoE.Experts = f.Size("num_local_experts", 16, model.MaxExperts)
	model.CheckMoE(f, c, "num_local_experts", "num_experts_per_tok", "", "")
}

func llama4Layer(c *model.Config, i int) model.LayerSpec {
	l := model.DecoderLayer(c, i)
	rotates := !slices.Contains(c.Unrotated, i)
	l.UnitNorm, l.Grows = c.UnitNorm && rotates, c.Growth.Beta != 0 && !rotates
	p := fmt.Sprintf("model.layers.%d.feed_forward.", i)
	l.Gate, l.Up, l.Down = model.Projection(p+"gate_proj", false), model.Projection(p+"up_proj", false), model.Projection(p+"down_proj", false)
	if l.Experts != nil {
		l.Experts = model.MLPExperts(p)
		l.Experts.Router = p + "router.weight"
		l.Experts.Share(p + "shared_expert")
	}
	return l
}

// tuned reports whether queries without a rotation grow. The first published files have a number instead of
// a boolean.
func tuned(f *model.Fields) bool {
	const key = "attn_temperature_tuning"
	var n float64
	if f.Has(key) && json.Unmarshal(f.Raw[key], &n) == nil {
		return n != 0
	}
	return f.Bool(key, true)
}
