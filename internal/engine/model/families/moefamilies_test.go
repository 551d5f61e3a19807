package families

import (
	"reflect"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/model"
)

// Each family's own keys and defaults of experts, as its configuration class in transformers has
// them, and settings that are refused by name.
func TestMoEFamilies(t *testing.T) {
	sigmoid := model.Router{Score: model.Sigmoid, Normalise: true, Scale: 1, Bias: true}
	hy3 := model.Router{Score: model.Sigmoid, Normalise: true, Scale: 2.826, Bias: true}
	ernie := model.Router{Score: model.Softmax, Normalise: true, MinSum: 1e-12, Scale: 1, Bias: true}
	for _, test := range []struct {
		arch string
		c    change
		want model.MoE
	}{
		{"MiniMaxM2", nil, model.MoE{Experts: 256, PerToken: 8, FFN: 96, Router: sigmoid}},
		{"MiniMaxM2", change{"num_local_experts": 4, "num_experts_per_tok": 4, "attn_type_list": []int{1, 1}, "use_routing_bias": true},
			model.MoE{Experts: 4, PerToken: 4, FFN: 96, Router: sigmoid}},
		{"Olmoe", nil, model.MoE{Experts: 64, PerToken: 8, FFN: 96, Router: model.Router{Score: model.Softmax, Scale: 1}}},
		{"Olmoe", change{"num_local_experts": 16, "norm_topk_prob": true, "clip_qkv": nil},
			model.MoE{Experts: 16, PerToken: 8, FFN: 96, Router: model.Router{Score: model.Softmax, Normalise: true, Scale: 1}}},
		{"GraniteMoe", nil, model.MoE{Experts: 8, PerToken: 2, FFN: 96, Router: model.Router{Score: model.SoftmaxOfChosen, Scale: 1}}},
		{"Ernie4_5_Moe", change{"num_hidden_layers": 3},
			model.MoE{Experts: 64, PerToken: 6, FFN: 1536, Shared: 3072, Router: ernie, Dense: []int{0}}},
		{"Ernie4_5_Moe", change{"num_hidden_layers": 8, "moe_layer_start_index": 2, "moe_layer_end_index": 6, "moe_layer_interval": 2,
			"moe_num_shared_experts": 0}, model.MoE{Experts: 64, PerToken: 6, FFN: 1536, Router: ernie, Dense: []int{0, 1, 2, 4, 6, 7}}},
		{"HYV3", change{"num_hidden_layers": 3}, model.MoE{Experts: 192, PerToken: 8, FFN: 1536, Shared: 1536, Router: hy3, Dense: []int{0}}},
		{"HYV3", change{"num_hidden_layers": 3, "mlp_layer_types": []string{"sparse", "sparse", "dense"}, "num_shared_experts": 0},
			model.MoE{Experts: 192, PerToken: 8, FFN: 1536, Router: hy3, Dense: []int{2}}},
		{"HunYuanMoEV1", change{"num_experts": 64, "moe_topk": []int{8, 8}, "moe_intermediate_size": []int{48, 48}, "num_shared_expert": []int{2,
			2}}, model.MoE{Experts: 64, PerToken: 8, FFN: 48, Shared: 96, Router: model.Router{Score: model.Softmax, Normalise: true, Scale: 1}}},
		{"HunYuanMoEV1", nil,
			model.MoE{Experts: 1, PerToken: 1, FFN: 96, Shared: 96, Router: model.Router{Score: model.Softmax, Normalise: true, Scale: 1}}},
	} {
		full := change{"architectures": []string{test.arch + "ForCausalLM"}}
		for k, v := range test.c {
			full[k] = v
		}
		if c, err := model.ParseConfig("d", with(full), nil); err != nil || !reflect.DeepEqual(c.MoE, test.want) {
			t.Errorf("%s %v: %+v, %v; want %+v", test.arch, test.c, c.MoE, err, test.want)
		}
	}
	for _, test := range []struct {
		arch string
		c    change
		want func(c *model.Config) bool
	}{
		{"MiniMaxM2", change{"rope_theta": remove, "rotary_dim": 64}, func(c *model.Config) bool {
			return c.HeadDim == 128 && c.Rotated == 64 && c.Rope.Theta == 5e6 && c.QKNormOf == model.OfProjection && !c.Neighbours
		}},
		{"MiniMaxM2", change{"head_dim": 16}, func(c *model.Config) bool { return c.Rotated == 0 }},
		{"Olmoe", change{"rope_theta": remove}, func(c *model.Config) bool { return c.Rope.Theta == 10000 && c.QKNormOf == model.OfProjection }},
		{"GraniteMoe", change{"residual_multiplier": 0.25},
			func(c *model.Config) bool { return c.Multipliers.Residual == 0.25 && c.AttentionScale() == 1 }},
		{"Ernie4_5_Moe", change{"rope_theta": remove, "tie_word_embeddings": remove},
			func(c *model.Config) bool { return c.Neighbours && c.Tied && c.Rope.Theta == 5e5 && c.HeadDim == 16 }},
		{"HYV3", change{"rope_theta": remove, "attention_bias": true}, func(c *model.Config) bool {
			return c.HeadDim == 128 && c.QKNorm && c.QKNormOf == model.OfHeads && c.QKVBias && c.OutBias && c.Rope.Theta == 11158840
		}},
		{"HunYuanMoEV1", change{"rope_theta": 1e4, "rope_scaling": map[string]any{"type": "dynamic", "alpha": 1000}},
			func(c *model.Config) bool { return c.QKNormOf == model.OfRotatedHeads && c.Rope.Theta > 1e7 }},
	} {
		full := change{"architectures": []string{test.arch + "ForCausalLM"}}
		for k, v := range test.c {
			full[k] = v
		}
		if c, err := model.ParseConfig("d", with(full), nil); err != nil || !test.want(&c) {
			t.Errorf("%s %v: %+v, %v", test.arch, test.c, c, err)
		}
	}
	for _, r := range []struct {
		arch, field string
		v           any
	}{
		{"MiniMaxM2", "rotary_dim", 15}, {"MiniMaxM2", "rotary_dim", 256}, {"MiniMaxM2", "rotary_dim", -2},
		{"MiniMaxM2", "num_experts_per_tok", 257}, {"MiniMaxM2", "scoring_func", "softmax"}, {"MiniMaxM2", "use_qk_norm", false},
		{"MiniMaxM2", "use_routing_bias", false}, {"MiniMaxM2", "qk_norm_type", "per_head"}, {"MiniMaxM2", "shared_intermediate_size", 8},
		{"MiniMaxM2", "attn_type_list", []int{1, 0}}, {"MiniMaxM2", "num_local_experts", 1 << 20},
		{"Olmoe", "clip_qkv", 8.0}, {"Olmoe", "num_experts", 0}, {"Olmoe", "num_experts_per_tok", 65}, {"Olmoe", "norm_topk_prob", "x"},
		{"GraniteMoe", "num_local_experts", -1}, {"GraniteMoe", "num_experts_per_tok", 9}, {"GraniteMoe", "residual_multiplier", 0},
		{"Ernie4_5_Moe", "use_bias", true}, {"Ernie4_5_Moe", "moe_k", 65}, {"Ernie4_5_Moe", "moe_num_experts", []int{64, 64}},
		{"Ernie4_5_Moe", "moe_norm_min", 0}, {"Ernie4_5_Moe", "moe_layer_interval", 0},
		{"Ernie4_5_Moe", "moe_layer_end_index", -2}, {"Ernie4_5_Moe", "moe_layer_start_index", -1},
		{"Ernie4_5_Moe", "moe_num_shared_experts", 1 << 20},
		{"HYV3", "mlp_bias", true}, {"HYV3", "router_scaling_factor", -1}, {"HYV3", "mlp_layer_types", []string{"dense"}},
		{"HYV3", "num_experts_per_tok", 193}, {"HYV3", "num_experts", "x"},
		{"HunYuanMoEV1", "moe_topk", []int{1, 2}}, {"HunYuanMoEV1", "moe_topk", []int{}}, {"HunYuanMoEV1", "num_experts", []any{"x", "x"}},
		{"HunYuanMoEV1", "moe_topk", 2}, {"HunYuanMoEV1", "use_cla", true}, {"HunYuanMoEV1", "use_mla", true},
		{"HunYuanMoEV1", "use_qk_norm", false}, {"HunYuanMoEV1", "use_mixed_mlp_moe", false},
		{"HunYuanMoEV1", "moe_layer_num_skipped", 1}, {"HunYuanMoEV1", "num_shared_expert", []int{1, 2}},
	} {
		_, err := model.ParseConfig("d", with(change{"architectures": []string{r.arch + "ForCausalLM"}, r.field: r.v}), nil)
		if err == nil || !strings.Contains(err.Error(), r.field) || !strings.Contains(err.Error(), "config.json") {
			t.Errorf("%s, %s %v: %v", r.arch, r.field, r.v, err)
		}
	}
}
