package model

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
)

// MiniMax M2. Differences from llama.go: the norms of queries and keys span all heads of a token, as
// in olmo2.go; the first rotary_dim elements of a head rotate; and every layer has experts, scored by
// sigmoids with a correction bias (moe.go), without a shared one.
func init() {
	register(architecture{
		Name:     "MiniMaxM2ForCausalLM",
		defaults: map[string]string{"num_key_value_heads": "8", "head_dim": "128", "max_position_embeddings": "196608"},
		rotary:   []string{partialKey},
		read:     readMiniMaxM2,
		layer:    minimaxM2Layer,
		extra:    llamaExtra,
		beyond:   deepseekBeyond,
	})
}

func readMiniMaxM2(f *fields, c *Config) {
	c.Tied = f.Bool("tie_word_embeddings", false)
	c.QKNorm, c.QKNormOf = true, OfProjection
	f.activation("hidden_act", "silu")
	f.OneOf("scoring_func", "sigmoid", "sigmoid")
	f.OneOf("qk_norm_type", "per_layer", "per_layer")
	for _, key := range []string{"use_qk_norm", "use_routing_bias"} {
		f.must(key, true)
	}
	if n := f.Index("shared_intermediate_size", 0, maxFFN); n != 0 {
		f.fail("shared_intermediate_size", ErrUnsupported, "%d: shared experts are not implemented for this family; only 0 is", n)
	}
	var kinds []int
	if f.get("attn_type_list", &kinds, "a list of whole numbers"); slices.ContainsFunc(kinds, func(k int) bool { return k != 1 }) {
		f.fail("attn_type_list", ErrUnsupported, "%s: only 1, full attention in every layer, is implemented", clip(string(f.raw["attn_type_list"])))
	}
	if f.has("rotary_dim") {
		n := f.Size("rotary_dim", 0, max(1, c.HeadDim))
		if n%2 != 0 {
			f.fail("rotary_dim", ErrUnsupported, "%d is odd; rotary positions need pairs", n)
		}
		f.raw[partialKey] = json.RawMessage(strconv.FormatFloat(float64(n)/float64(max(1, c.HeadDim)), 'g', -1, 64))
		delete(f.raw, "rotary_dim")
	}
	c.readRotated(f, 1)
	readRope(f, c, 5e6)
	c.MoE = MoE{
		Experts:  f.Size("num_local_experts", 256, maxExperts),
		PerToken: f.Size("num_experts_per_tok", 8, maxExperts),
		FFN:      c.FFN,
		Router:   Router{Score: Sigmoid, Normalise: true, Scale: 1, Bias: true},
	}
	checkMoE(f, c, "num_local_experts", "num_experts_per_tok", "", "")
}

func minimaxM2Layer(c *Config, i int) LayerSpec {
	l := mixtralLayer(c, i)
	l.Experts.Bias = fmt.Sprintf("model.layers.%d.block_sparse_moe.e_score_correction_bias", i)
	return l
}
