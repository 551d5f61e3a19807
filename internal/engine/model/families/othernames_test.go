package families

import (
	"encoding/json"
	"maps"
	"reflect"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/model/rotary"
)

// Configuration classes of transformers accept some settings under a second name (attribute_map). A setting under
// that name must not become the default.
func TestOtherNames(t *testing.T) {
	for _, test := range []struct {
		arch, key, other string
		value            any
	}{
		{"MixtralForCausalLM", "num_local_experts", "num_experts", 3}, {"GptOssForCausalLM", "num_local_experts", "num_experts", 3},
		{"MiniMaxM2ForCausalLM", "num_local_experts", "num_experts", 3}, {"Qwen3MoeForCausalLM", "num_experts", "num_local_experts", 3},
		{"OlmoeForCausalLM", "num_experts", "num_local_experts", 3}, {"HYV3ForCausalLM", "num_experts", "num_local_experts", 3},
		{"Ernie4_5_MoeForCausalLM", "moe_num_experts", "num_experts", 5}, {"Ernie4_5_MoeForCausalLM", "moe_k", "num_experts_per_tok", 1},
		{"HunYuanMoEV1ForCausalLM", "num_experts", "num_local_experts", 3}, {"HunYuanMoEV1ForCausalLM", "moe_topk", "num_experts_per_tok", 2},
		{"DeepseekV2ForCausalLM", "n_routed_experts", "num_experts", 6}, {"DeepseekV3ForCausalLM", "n_routed_experts", "num_local_experts", 8},
		{"DeepseekV32ForCausalLM", "n_routed_experts", "num_local_experts", 8},
		{"GlmMoeDsaForCausalLM", "n_routed_experts", "num_local_experts", 8},
		{"Glm4MoeForCausalLM", "n_routed_experts", "num_local_experts", 8},
		{"Glm4MoeLiteForCausalLM", "n_routed_experts", "num_local_experts", 8},
		{"NemotronHForCausalLM", "n_routed_experts", "num_local_experts", 3},
	} {
		parse := func(key string) model.Config {
			c := maps.Clone(tiny(t, test.arch))
			delete(c, test.key)
			delete(c, test.other)
			c[key] = test.value
			text, err := json.Marshal(c)
			if err != nil {
				t.Fatal(err)
			}
			got, err := model.ParseConfig("m", text, nil)
			if err != nil {
				t.Errorf("%s with %s: %v", test.arch, key, err)
			}
			return got
		}
		if want, got := parse(test.key), parse(test.other); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %s %v gives %+v, %s gives %+v", test.arch, test.other, test.value, got.MoE, test.key, want.MoE)
		}
	}
}

// In rope_parameters by kind of layer, a rotation without a base has that of the older keys.
func TestRotationsWithoutBase(t *testing.T) {
	kinds := change{"full_attention": change{"rope_type": "linear", "factor": 2}, "sliding_attention": change{"rope_type": "default"}}
	for _, test := range []struct {
		arch        string
		c           change
		full, local float64
	}{
		{"Gemma3ForCausalLM", change{"rope_theta": remove}, 1e6, 1e4},
		{"Gemma3ForCausalLM", change{"rope_theta": 3e5, "rope_local_base_freq": 2e4}, 3e5, 2e4},
		{"Olmo3ForCausalLM", change{"rope_theta": remove}, 5e5, 5e5},
		{"Olmo3ForCausalLM", change{"rope_theta": 3e5}, 3e5, 5e5}, // as in transformers
	} {
		c := maps.Clone(test.c)
		c["architectures"], c["rope_parameters"], c["head_dim"] = []string{test.arch}, kinds, 16
		got, err := model.ParseConfig("m", with(c), nil)
		want := rotary.Rope{Theta: test.full, Type: "linear", Factor: 2}
		if err != nil || !reflect.DeepEqual(got.Rope, want) || got.LocalRope.Theta != test.local {
			t.Errorf("%s %v: %v, %v; %v", test.arch, test.c, got.Rope, got.LocalRope, err)
		}
	}
}

// transformers 4 reads the trained length from rope_scaling, transformers 5 from outside of it.
func TestTwoTrainedLengths(t *testing.T) {
	for _, kind := range []change{{"rope_type": "yarn", "factor": 4},
		{"rope_type": "llama3", "factor": 4, "low_freq_factor": 1, "high_freq_factor": 4}} {
		scaling := maps.Clone(kind)
		scaling["original_max_position_embeddings"] = 64
		for outer, ok := range map[any]bool{64: true, remove: true, nil: true, 128: false} {
			_, err := model.ParseConfig("m", with(change{"rope_scaling": scaling, "original_max_position_embeddings": outer}), nil)
			if (err == nil) != ok {
				t.Errorf("%v with a length of %v outside: %v", scaling, outer, err)
			}
		}
	}
}
