package model

import (
	"fmt"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/model/recurrent"
)

// LFM2 and LFM2.5 (Liquid AI). Most layers have a short convolution (recurrent/shortconv.go) instead of attention.
// Attention differs from llama.go by norms of queries and keys. Files name the final norm
// model.embedding_norm.
func init() {
	defaults := map[string]string{"hidden_size": "2560", "intermediate_size": "12288", "num_hidden_layers": "32", "num_attention_heads": "32",
		"num_key_value_heads": "8", "vocab_size": "65536", "max_position_embeddings": "128000"}
	register(architecture{Name: "Lfm2ForCausalLM", defaults: defaults, read: readLFM2, layer: lfm2Layer, take: takeLFM2, extra: llamaExtra})
}

// In the variant with experts, all layers but the first have the experts of moe.go, with a correction
// bias. The divisor of their weights is their sum plus 1e-6.
func init() {
	register(architecture{
		Name: lfm2MoE,
		defaults: map[string]string{"hidden_size": "2048", "intermediate_size": "7168", "num_hidden_layers": "32", "num_attention_heads": "32",
			"num_key_value_heads": "8", "vocab_size": "65536", "max_position_embeddings": "128000"},
		read: func(f *fields, c *Config) {
			readLFM2(f, c)
			c.MoE = MoE{
				Experts:  f.Size("num_experts", 32, maxExperts),
				PerToken: f.Size("num_experts_per_tok", 4, maxExperts),
				FFN:      f.Size("moe_intermediate_size", 1792, maxFFN),
				Router: Router{Score: Sigmoid, Normalise: f.Bool("norm_topk_prob", true), SumPlus: 1e-6,
					Scale: float32(f.Number("routed_scaling_factor", 1, 1e-6, 1e6)), Bias: f.Bool("use_expert_bias", true)},
			}
			for i := range min(f.Index("num_dense_layers", 2, maxLayers), c.Layers) {
				c.MoE.Dense = append(c.MoE.Dense, i)
			}
			checkMoE(f, c, "num_experts", "num_experts_per_tok", "", "")
		},
		layer: lfm2Layer,
		take:  takeLFM2,
		extra: llamaExtra,
	})
}

const lfm2MoE = "Lfm2MoeForCausalLM"

func readLFM2(f *fields, c *Config) {
	c.NormEps = float32(f.Number("norm_eps", 1e-5, 1e-12, 0.1))
	c.Tied = f.Bool("tie_embedding", f.Bool("tie_word_embeddings", true))
	c.QKNorm = true
	f.must("conv_bias", false)
	readRope(f, c, 1e6)
	if c.Architecture != lfm2MoE {
		c.FFN = f.Size("block_ff_dim", c.FFN, maxFFN)
		if f.Bool("block_auto_adjust_ff_dim", true) {
			of := f.Size("block_multiple_of", 256, maxFFN)
			n := int(f.Number("block_ffn_dim_multiplier", 1, 1e-3, 1e3) * float64(2*c.FFN/3))
			c.FFN = max(1, min((n+of-1)/of*of, maxFFN))
		}
	}
	key := "layer_types"
	kinds := f.layerKinds(key, c.Layers, map[string]string{"conv": linearKind, "full_attention": fullKind})
	full := func(i int) bool { return kinds[i] == fullKind }
	if kinds == nil {
		key = "full_attn_idxs"
		named, all := f.Layers(key, c.Layers), !f.has(key)
		full = func(i int) bool { return all || slices.Contains(named, i) }
	}
	c.Delta = recurrent.Mixer{Kind: recurrent.ShortConv, KeyHeads: c.KVHeads, ValueHeads: c.KVHeads, Taps: f.Size("conv_L_cache", 3, maxTaps)}
	if c.Hidden%c.KVHeads != 0 {
		c.Delta.KeyHeads, c.Delta.ValueHeads = 1, 1
	}
	c.Delta.ValueDim = c.Hidden / c.Delta.KeyHeads
	c.checkMixer(f, key, full)
}

func lfm2Layer(c *Config, i int) LayerSpec {
	l := llamaLayer(c, i)
	p := fmt.Sprintf("model.layers.%d.", i)
	l.AttnNorm, l.FFNNorm = p+"operator_norm.weight", p+"ffn_norm.weight"
	l.O.Weight, l.QNorm, l.KNorm = p+"self_attn.out_proj.weight", p+"self_attn.q_layernorm.weight", p+"self_attn.k_layernorm.weight"
	l.Gate, l.Up, l.Down = linear(p+"feed_forward.w1", false), linear(p+"feed_forward.w3", false), linear(p+"feed_forward.w2", false)
	if c.Sparse(i) {
		l.Experts = &MoENames{Router: p + "feed_forward.gate.weight", Bias: p + "feed_forward.expert_bias",
			expert: p + "feed_forward.experts.", gate: "w1.weight", up: "w3.weight", down: "w2.weight"}
	}
	if c.Recurrent(i) {
		l.Q, l.K, l.V, l.O, l.QNorm, l.KNorm = Linear{}, Linear{}, Linear{}, Linear{}, "", ""
		l.Delta = &DeltaSpec{Joint: linear(p+"conv.in_proj", false), Conv: p + "conv.conv.weight", Out: linear(p+"conv.out_proj", false)}
	}
	return l
}

func takeLFM2(c *Checkpoint) error { return c.rename("model.embedding_norm.weight", FinalNorm) }
