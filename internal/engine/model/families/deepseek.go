package families

import (
	"fmt"

	"github.com/shoal-llm/shoal/internal/engine/model"
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
// (docs/decisions/attention-variants.md). Only [c | kr] is cached:
//
//	q_i . k_i   = [KUp_i^T qn_i | qr_i] . [c | kr]
//	sum p v_i   = VUp_i (sum p c)
//
// RoPE rotates pairs of neighbours here, see Order.
func init() {
	for name, experts := range map[string]map[string]string{"DeepseekV2ForCausalLM": {"n_routed_experts": "num_experts"},
		"DeepseekV3ForCausalLM": routedExperts} {
		model.Register(model.Family{
			Name:    name,
			Aliases: experts,
			Read:    readDeepseek,
			Layer:   deepseekLayer,
			Latent:  true,
			Beyond:  model.AfterLast,
		})
	}
}

// routedExperts has another name that the configuration classes of most families with DeepSeek's experts accept.
var routedExperts = map[string]string{"n_routed_experts": "num_local_experts"}

func deepseekLayer(c *model.Config, i int) model.LayerSpec {
	l, d := model.DecoderLayer(c, i), &c.Latent
	p := fmt.Sprintf("model.layers.%d.self_attn.", i)
	l.Q, l.K, l.V = model.Linear{}, model.Linear{}, model.Linear{}
	l.Latent = &model.LatentSpec{
		QUp:    model.Projection(p+"q_proj", false),
		KVDown: model.Projection(p+"kv_a_proj_with_mqa", false),
		KVNorm: p + "kv_a_layernorm.weight",
		KVUp:   model.Projection(p+"kv_b_proj", false),
	}
	if d.QueryRank > 0 {
		l.Latent.QDown, l.Latent.QNorm, l.Latent.QUp = model.Projection(p+"q_a_proj", false), p+"q_a_layernorm.weight",
			model.Projection(p+"q_b_proj", false)
	}
	l.Latent.QUp.Order = model.Order{Head: c.HeadDim, Plain: d.Nope, Rotated: d.Rope, Neighbours: true}
	l.Latent.KVDown.Order = model.Order{Head: d.Rank + d.Rope, Plain: d.Rank, Rotated: d.Rope, Neighbours: true}
	return l
}

func readDeepseek(f *model.Fields, c *model.Config) {
	c.Tied = f.Bool("tie_word_embeddings", false)
	model.ReadRope(f, c, 10000)
	f.ReadActivation("hidden_act", "silu")
	if f.Bool("attention_bias", false) {
		f.Refuse("attention_bias", "latent attention with biases is not supported")
	}
	if !f.Bool("rope_interleave", true) {
		f.Refuse("rope_interleave", "false: pairs of halves are not supported for this family")
	}
	l := &c.Latent
	l.Rank = f.Size("kv_lora_rank", 512, model.MaxHidden)
	l.Nope = f.Size("qk_nope_head_dim", 128, model.MaxHeadDim)
	l.Rope = f.Size("qk_rope_head_dim", 64, model.MaxHeadDim)
	l.Value = f.Size("v_head_dim", 128, model.MaxHeadDim)
	if !f.Given("q_lora_rank") || f.Has("q_lora_rank") { // null: none
		l.QueryRank = f.Size("q_lora_rank", 1536, model.MaxHidden)
	}
	if f.Err == nil && l.Rope%2 != 0 {
		f.Refuse("qk_rope_head_dim", "%d is odd; rotary positions need pairs", l.Rope)
	}
	c.HeadDim, c.KVHeads = l.Nope+l.Rope, 1
	readDeepseekExperts(f, c, c.Architecture != "DeepseekV2ForCausalLM")
}

// readDeepseekExperts reads the router's settings. V2 scores experts by a softmax over all, and may
// choose within the groups with the largest single scores. V3 scores by sigmoids with a correction
// bias, within the groups with the largest two scores. Both have shared experts and dense first
// layers. n_routed_experts null or 0: every layer is dense.
func readDeepseekExperts(f *model.Fields, c *model.Config, v3 bool) {
	defaults := struct{ experts, shared, width, first int }{64, 2, 1407, 0}
	if v3 {
		defaults = struct{ experts, shared, width, first int }{256, 1, 2048, 3}
	}
	first := f.Index("first_k_dense_replace", defaults.first, model.MaxLayers)
	if f.Given("n_routed_experts") && f.Index("n_routed_experts", 0, model.MaxExperts) == 0 ||
		f.Err == nil && first >= c.Layers && !f.Has("mlp_layer_types") {
		return
	}
	c.MoE = model.MoE{
		Experts:  f.Size("n_routed_experts", defaults.experts, model.MaxExperts),
		PerToken: f.Size("num_experts_per_tok", 8, model.MaxExperts),
		FFN:      f.Size("moe_intermediate_size", defaults.width, model.MaxFFN),
	}
	shared := defaults.shared
	if f.Given("n_shared_experts") { // null: none
		shared = f.Index("n_shared_experts", 0, model.MaxExperts)
	}
	c.MoE.Shared = shared * c.MoE.FFN
	r := &c.MoE.Router
	r.Scale = float32(f.Number("routed_scaling_factor", map[bool]float64{false: 1, true: 2.5}[v3], 0, 1e6))
	if v3 {
		f.OneOf("scoring_func", "sigmoid", "sigmoid")
		f.OneOf("topk_method", "noaux_tc", "noaux_tc")
		r.Score, r.Bias, r.Normalise = model.Sigmoid, true, f.Bool("norm_topk_prob", true)
		r.Groups, r.TopGroups, r.GroupTop = f.Size("n_group", 8, model.MaxExperts), f.Size("topk_group", 4, model.MaxExperts), 2
	} else {
		f.OneOf("scoring_func", "softmax", "softmax")
		r.Score = model.Softmax
		if f.Bool("norm_topk_prob", false) {
			f.Refuse("norm_topk_prob", "true: the published implementations of this family disagree on its effect")
		}
		if f.OneOf("topk_method", "greedy", "greedy", "group_limited_greedy") == "group_limited_greedy" {
			r.Groups, r.TopGroups, r.GroupTop = f.Size("n_group", 0, model.MaxExperts), f.Size("topk_group", 0, model.MaxExperts), 1
		}
	}
	if step := f.Size("moe_layer_freq", 1, model.MaxLayers); step != 1 {
		f.Refuse("moe_layer_freq", "%d: only 1 was published", step)
	}
	for i := range min(first, c.Layers) {
		c.MoE.Dense = append(c.MoE.Dense, i)
	}
	model.CheckMoE(f, c, "n_routed_experts", "num_experts_per_tok", "n_group", "topk_group")
}
