package model

import (
	"fmt"
	"github.com/shoal-llm/shoal/internal/engine/model/rotary"
	"math"
	"strconv"
	"strings"
)

// DeepSeek V2 and V3 (arXiv 2405.04434, 2412.19437), and R1: multi-head latent attention, and in
// most layers a mixture of experts (moe.go). Everything else is as in llama.go. Attention, as
// published:
//
//	cq      = RMSNorm(QDown h)                            (query rank); V2-Lite: cq = h, QUp is Q
//	q_i     = [QUp_i cq | RoPE(QUp'_i cq)]                (nope + rope) of each head
//	c, kr   = KVDown h                                    (rank), (rope), one for all heads
//	c, kr   = RMSNorm(c), RoPE(kr)
//	k_i     = [KUp_i c | kr]                              (nope + rope)
//	v_i     = VUp_i c                                     (value)
//	x      += O [attention(q_i, k_i, v_i)]                (heads*value)
//
// It is computed here in absorbed form (section 2.1.2 there), in prefill and decode
// (docs/decisions/latent-attention.md). Only [c | kr] is cached:
//
//	q_i . k_i   = [KUp_i^T qn_i | qr_i] . [c | kr]
//	sum p v_i   = VUp_i (sum p c)
//
// RoPE rotates pairs of neighbours here, see Order.
func init() {
	for _, name := range []string{"DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM"} {
		register(architecture{
			Name:   name,
			read:   readDeepseek,
			layer:  deepseekLayer,
			latent: true,
			extra:  llamaExtra,
			beyond: deepseekBeyond,
		})
	}
}

// Latent is multi-head latent attention (MLA; DeepSeek-V2, arXiv 2405.04434, section 2.1): keys and
// values of all heads are projections of one latent per token, and all heads share one rotated key.
// See deepseek.go. All sizes are in elements.
type Latent struct {
	Rank      int     // of the latent of keys and values; 0: no latent attention
	QueryRank int     `json:",omitempty"` // of the latent of queries; 0: queries are projected directly
	Nope      int     // unrotated part of a head's query and key
	Rope      int     // rotated part
	Value     int     // width of a head's value
	Index     Indexer `json:",omitzero"` // see indexer.go
}

// LatentSpec names the tensors of a layer's latent attention.
type LatentSpec struct {
	QDown  Linear     // (query rank, hidden)
	QNorm  string     // (query rank)
	QUp    Linear     // (heads*(nope+rope), query rank); without a query latent (.., hidden)
	KVDown Linear     // (rank + rope, hidden)
	KVNorm string     // (rank)
	KVUp   Linear     // (heads*(nope+value), rank)
	Index  *IndexSpec // Latent.Index; nil: none
}

// LatentNormEps is the epsilon of QNorm and KVNorm, independent of the other norms.
const LatentNormEps = 1e-6

func deepseekLayer(c *Config, i int) LayerSpec {
	l, d := llamaLayer(c, i), &c.Latent
	p := fmt.Sprintf("model.layers.%d.self_attn.", i)
	l.Q, l.K, l.V = Linear{}, Linear{}, Linear{}
	l.Latent = &LatentSpec{
		QUp:    linear(p+"q_proj", false),
		KVDown: linear(p+"kv_a_proj_with_mqa", false),
		KVNorm: p + "kv_a_layernorm.weight",
		KVUp:   linear(p+"kv_b_proj", false),
	}
	if d.QueryRank > 0 {
		l.Latent.QDown, l.Latent.QNorm, l.Latent.QUp = linear(p+"q_a_proj", false), p+"q_a_layernorm.weight", linear(p+"q_b_proj", false)
	}
	l.Latent.QUp.Order = Order{Head: c.HeadDim, Plain: d.Nope, Rotated: d.Rope, Neighbours: true}
	l.Latent.KVDown.Order = Order{Head: d.Rank + d.Rope, Plain: d.Rank, Rotated: d.Rope, Neighbours: true}
	return l
}

// latent lists the tensors of latent attention in the order of the formulas.
func (s *specs) latent(c *Config, l *LatentSpec) {
	d := &c.Latent
	s.linear(l.QDown, d.QueryRank, c.Hidden)
	s.add(l.QNorm, d.QueryRank)
	width := c.Hidden
	if d.QueryRank > 0 {
		width = d.QueryRank
	}
	s.linear(l.QUp, c.Heads*c.HeadDim, width)
	s.linear(l.KVDown, d.Rank+d.Rope, c.Hidden)
	s.add(l.KVNorm, d.Rank)
	s.linear(l.KVUp, c.Heads*(d.Nope+d.Value), d.Rank)
	s.indexer(c, l.Index)
}

func readDeepseek(f *fields, c *Config) {
	c.Tied = f.Bool("tie_word_embeddings", false)
	readRope(f, c, 10000)
	f.activation("hidden_act", "silu")
	if f.Bool("attention_bias", false) {
		f.fail("attention_bias", ErrUnsupported, "latent attention with biases is not supported")
	}
	if !f.Bool("rope_interleave", true) {
		f.fail("rope_interleave", ErrUnsupported, "false: pairs of halves are not supported for this family")
	}
	l := &c.Latent
	l.Rank = f.Size("kv_lora_rank", 512, maxHidden)
	l.Nope = f.Size("qk_nope_head_dim", 128, maxHeadDim)
	l.Rope = f.Size("qk_rope_head_dim", 64, maxHeadDim)
	l.Value = f.Size("v_head_dim", 128, maxHeadDim)
	if !f.given("q_lora_rank") || f.has("q_lora_rank") { // null: none
		l.QueryRank = f.Size("q_lora_rank", 1536, maxHidden)
	}
	if f.err == nil && l.Rope%2 != 0 {
		f.fail("qk_rope_head_dim", ErrUnsupported, "%d is odd; rotary positions need pairs", l.Rope)
	}
	c.HeadDim, c.KVHeads = l.Nope+l.Rope, 1
	readDeepseekExperts(f, c, c.Architecture != "DeepseekV2ForCausalLM")
}

// readDeepseekExperts reads the router's settings. V2 scores experts by a softmax over all, and may
// choose within the groups with the largest single scores. V3 scores by sigmoids with a correction
// bias, within the groups with the largest two scores. Both have shared experts and dense first
// layers. n_routed_experts null or 0: every layer is dense.
func readDeepseekExperts(f *fields, c *Config, v3 bool) {
	defaults := struct{ experts, shared, width, first int }{64, 2, 1407, 0}
	if v3 {
		defaults = struct{ experts, shared, width, first int }{256, 1, 2048, 3}
	}
	first := f.Index("first_k_dense_replace", defaults.first, maxLayers)
	if f.given("n_routed_experts") && f.Index("n_routed_experts", 0, maxExperts) == 0 || f.err == nil && first >= c.Layers {
		return
	}
	c.MoE = MoE{
		Experts:  f.Size("n_routed_experts", defaults.experts, maxExperts),
		PerToken: f.Size("num_experts_per_tok", 8, maxExperts),
		FFN:      f.Size("moe_intermediate_size", defaults.width, maxFFN),
	}
	shared := defaults.shared
	if f.given("n_shared_experts") { // null: none
		shared = f.Index("n_shared_experts", 0, maxExperts)
	}
	c.MoE.Shared = shared * c.MoE.FFN
	r := &c.MoE.Router
	r.Scale = float32(f.Number("routed_scaling_factor", map[bool]float64{false: 1, true: 2.5}[v3], 0, 1e6))
	if v3 {
		f.OneOf("scoring_func", "sigmoid", "sigmoid")
		f.OneOf("topk_method", "noaux_tc", "noaux_tc")
		r.Score, r.Bias, r.Normalise = Sigmoid, true, f.Bool("norm_topk_prob", true)
		r.Groups, r.TopGroups, r.GroupTop = f.Size("n_group", 8, maxExperts), f.Size("topk_group", 4, maxExperts), 2
	} else {
		f.OneOf("scoring_func", "softmax", "softmax")
		r.Score = Softmax
		if f.Bool("norm_topk_prob", false) {
			f.fail("norm_topk_prob", ErrUnsupported, "true: the published implementations of this family disagree on what it does")
		}
		if f.OneOf("topk_method", "greedy", "greedy", "group_limited_greedy") == "group_limited_greedy" {
			r.Groups, r.TopGroups, r.GroupTop = f.Size("n_group", 0, maxExperts), f.Size("topk_group", 0, maxExperts), 1
		}
	}
	if step := f.Size("moe_layer_freq", 1, maxLayers); step != 1 {
		f.fail("moe_layer_freq", ErrUnsupported, "%d: only 1 was published", step)
	}
	for i := range min(first, c.Layers) {
		c.MoE.Dense = append(c.MoE.Dense, i)
	}
	checkMoE(f, c, "n_routed_experts", "num_experts_per_tok", "n_group", "topk_group")
}

// latentScale is the factor of attention scores: 1/sqrt(HeadDim), with YaRN times the square of its
// mscale.
func (c *Config) latentScale() float32 {
	scale := 1 / math.Sqrt(float64(c.HeadDim))
	if c.Rope.Type == "yarn" && c.Rope.MScaleAll != 0 {
		m := rotary.YarnScale(c.Rope.Factor, c.Rope.MScaleAll)
		scale *= m * m
	}
	return float32(scale)
}

// deepseekBeyond allows the layers after the last, which predict further tokens (V3, section 2.2)
// and do not change the next one.
func deepseekBeyond(c *Config, name string) bool {
	rest, ok := strings.CutPrefix(name, "model.layers.")
	if !ok {
		return false
	}
	number, _, _ := strings.Cut(rest, ".")
	i, err := strconv.Atoi(number)
	return err == nil && i >= c.Layers && i < c.Layers+maxExtraLayers
}

// maxExtraLayers bounds the layers of multi-token prediction. Published models have one.
const maxExtraLayers = 8
