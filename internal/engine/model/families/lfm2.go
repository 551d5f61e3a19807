package families

import (
	"fmt"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/model/recurrent"
)

// LFM2 and LFM2.5 (Liquid AI). Most layers have a short convolution (recurrent/shortconv.go) instead of attention.
// Attention differs from llama.go by norms of queries and keys. Files name the final norm
// model.embedding_norm.
func init() {
	defaults := map[string]string{"hidden_size": "2560", "intermediate_size": "12288", "num_hidden_layers": "32", "num_attention_heads": "32",
		"num_key_value_heads": "8", "vocab_size": "65536", "max_position_embeddings": "128000"}
	model.Register(model.Family{Name: "Lfm2ForCausalLM", Defaults: defaults, Read: readLFM2, Layer: lfm2Layer, Moved: lfm2Moved})
}

// In the variant with experts, all layers but the first have the experts of moe.go, with a correction
// bias. The divisor of their weights is their sum plus 1e-6.
func init() {
	model.Register(model.Family{
		Name: LFM2MoE,
		Defaults: map[string]string{"hidden_size": "2048", "intermediate_size": "7168", "num_hidden_layers": "32", "num_attention_heads": "32",
			"num_key_value_heads": "8", "vocab_size": "65536", "max_position_embeddings": "128000"},
		Read: func(f *model.Fields, c *model.Config) {
			readLFM2(f, c)
			c.MoE = model.MoE{
				Experts:  f.Size("num_experts", 32, model.MaxExperts),
				PerToken: f.Size("num_experts_per_tok", 4, model.MaxExperts),
				FFN:      f.Size("moe_intermediate_size", 1792, model.MaxFFN),
				Router: model.Router{Score: model.Sigmoid, Normalise: f.Bool("norm_topk_prob", true), SumPlus: 1e-6,
					Scale: float32(f.Number("routed_scaling_factor", 1, 1e-6, 1e6)), Bias: f.Bool("use_expert_bias", true)},
			}
			for i := range min(f.Index("num_dense_layers", 2, model.MaxLayers), c.Layers) {
				c.MoE.Dense = append(c.MoE.Dense, i)
			}
			model.CheckMoE(f, c, "num_experts", "num_experts_per_tok", "", "")
		},
		Layer: lfm2Layer,
		Moved: lfm2Moved,
	})
}

var lfm2Moved = map[string]string{"model.embedding_norm.weight": model.FinalNorm}

const LFM2MoE = "Lfm2MoeForCausalLM"

func readLFM2(f *model.Fields, c *model.Config) {
	c.NormEps = float32(f.Number("norm_eps", 1e-5, 1e-12, 0.1))
	c.Tied = f.Bool("tie_embedding", f.Bool("tie_word_embeddings", true))
	c.QKNorm = true
	f.MustBe("conv_bias", false)
	model.ReadRope(f, c, 1e6)
	if c.Architecture != LFM2MoE {
		c.FFN = f.Size("block_ff_dim", c.FFN, model.MaxFFN)
		if f.Bool("block_auto_adjust_ff_dim", true) {
			of := f.Size("block_multiple_of", 256, model.MaxFFN)
			n := int(f.Number("block_ffn_dim_multiplier", 1, 1e-3, 1e3) * float64(2*c.FFN/3))
			c.FFN = max(1, min((n+of-1)/of*of, model.MaxFFN))
		}
	}
	key := "layer_types"
	kinds := layerKinds(f, key, c.Layers, map[string]string{"conv": linearKind, "full_attention": fullKind})
	full := func(i int) bool { return kinds[i] == fullKind }
	if kinds == nil {
		key = "full_attn_idxs"
		named, all := f.Layers(key, c.Layers), !f.Has(key)
		full = func(i int) bool { return all || slices.Contains(named, i) }
	}
	c.Delta = recurrent.Mixer{Kind: recurrent.ShortConv, KeyHeads: c.KVHeads, ValueHeads: c.KVHeads,
		Taps: f.Size("conv_L_cache", 3, model.MaxTaps)}
	if c.Hidden%c.KVHeads != 0 {
		c.Delta.KeyHeads, c.Delta.ValueHeads = 1, 1
	}
	c.Delta.ValueDim = c.Hidden / c.Delta.KeyHeads
	checkMixer(c, f, key, full)
}

func lfm2Layer(c *model.Config, i int) model.LayerSpec {
	l := model.DecoderLayer(c, i)
	p := fmt.Sprintf("model.layers.%d.", i)
	l.AttnNorm, l.FFNNorm = p+"operator_norm.weight", p+"ffn_norm.weight"
	l.O.Weight, l.QNorm, l.KNorm = p+"self_attn.out_proj.weight", p+"self_attn.q_layernorm.weight", p+"self_attn.k_layernorm.weight"
	l.Gate, l.Up, l.Down = model.Projection(p+"feed_forward.w1", false), model.Projection(p+"feed_forward.w3", false),
		model.Projection(p+"feed_forward.w2", false)
	if c.Sparse(i) {
		l.Experts = &model.MoENames{Router: p + "feed_forward.gate.weight", Bias: p + "feed_forward.expert_bias",
			ExpertPrefix: p + "feed_forward.experts.", GatePart: "w1.weight", UpPart: "w3.weight", DownPart: "w2.weight"}
	}
	if c.Recurrent(i) {
		l.Q, l.K, l.V, l.O, l.QNorm, l.KNorm = model.Linear{}, model.Linear{}, model.Linear{}, model.Linear{}, "", ""
		l.Delta = &model.DeltaSpec{Joint: model.Projection(p+"conv.in_proj", false), Conv: p + "conv.conv.weight",
			Out: model.Projection(p+"conv.out_proj", false)}
	}
	return l
}
