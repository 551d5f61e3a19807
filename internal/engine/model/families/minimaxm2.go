package families

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"github.com/shoal-llm/shoal/internal/engine/model"
)

// MiniMax M2. Differences from llama.go: the norms of queries and keys span all heads of a token, as
// in olmo2.go; the first rotary_dim elements of a head rotate; and every layer has experts, scored by
// sigmoids with a correction bias (moe.go), without a shared one.
func init() {
	model.Register(model.Family{
		Name:     "MiniMaxM2ForCausalLM",
		Defaults: map[string]string{"num_key_value_heads": "8", "head_dim": "128", "max_position_embeddings": "196608"},
		Aliases:  map[string]string{"num_local_experts": "num_experts"},
		Rotary:   []string{model.PartialKey},
		Read:     readMiniMaxM2,
		Layer:    minimaxM2Layer,
		Beyond:   model.AfterLast,
	})
}

func readMiniMaxM2(f *model.Fields, c *model.Config) {
	c.Tied = f.Bool("tie_word_embeddings", false)
	c.QKNorm, c.QKNormOf = true, model.OfProjection
	f.ReadActivation("hidden_act", "silu")
	f.OneOf("scoring_func", "sigmoid", "sigmoid")
	f.OneOf("qk_norm_type", "per_layer", "per_layer")
	for _, key := range []string{"use_qk_norm", "use_routing_bias"} {
		f.MustBe(key, true)
	}
	if n := f.Index("shared_intermediate_size", 0, model.MaxFFN); n != 0 {
		f.Refuse("shared_intermediate_size", "%d: shared experts are not implemented for this family; only 0 is", n)
	}
	var kinds []int
	if f.Get("attn_type_list", &kinds, "a list of whole numbers"); slices.ContainsFunc(kinds, func(k int) bool { return k != 1 }) {
		f.Refuse("attn_type_list", "%s: only 1, full attention in every layer, is implemented", model.Clip(string(f.Raw["attn_type_list"])))
	}
	if f.Has("rotary_dim") {
		n := f.Size("rotary_dim", 0, max(1, c.HeadDim))
		if n%2 != 0 {
			f.Refuse("rotary_dim", "%d is odd; rotary positions need pairs", n)
		}
		f.Raw[model.PartialKey] = json.RawMessage(strconv.FormatFloat(float64(n)/float64(max(1, c.HeadDim)), 'g', -1, 64))
		f.Drop("rotary_dim")
	}
	c.ReadRotated(f, 1)
	model.ReadRope(f, c, 5e6)
	c.MoE = model.MoE{
		Experts:  f.Size("num_local_experts", 256, model.MaxExperts),
		PerToken: f.Size("num_experts_per_tok", 8, model.MaxExperts),
		FFN:      c.FFN,
		Router:   model.Router{Score: model.Sigmoid, Normalise: true, Scale: 1, Bias: true},
	}
	model.CheckMoE(f, c, "num_local_experts", "num_experts_per_tok", "", "")
}

func minimaxM2Layer(c *model.Config, i int) model.LayerSpec {
	l := mixtralLayer(c, i)
	l.Experts.Bias = fmt.Sprintf("model.layers.%d.block_sparse_moe.e_score_correction_bias", i)
	return l
}
