package families

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

func deepseekConfig(t *testing.T, name string, c change) (model.Config, error) {
	t.Helper()
	var raw map[string]any
	readJSON(t, filepath.Join("../testdata", name, model.ConfigFile), &raw)
	for k, v := range c {
		if raw[k] = v; v == remove {
			delete(raw, k)
		}
	}
	return model.ParseConfig("d", marshal(t, raw), nil)
}

// The size of a cached token and the division of heads follow from the config.
func TestLatentSizes(t *testing.T) {
	c, err := deepseekConfig(t, "deepseek_v3",
		change{"num_attention_heads": 128, "hidden_size": 7168, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
			"qk_nope_head_dim": 128, "v_head_dim": 128, "q_lora_rank": 1536, "num_key_value_heads": 128, "num_hidden_layers": 61})
	if err != nil {
		t.Fatal(err)
	}
	heads, key, value := c.CacheRow()
	if l := c.CacheLayout(tensor.BF16); heads != 1 || key != 576 || value != 512 || l.RowBytes() != 2*576 ||
		c.HeadUnits() != 16 || c.HeadDim != 192 {
		t.Errorf("%d heads of %d and %d, %d bytes a row, %d units", heads, key, value, l.RowBytes(), c.HeadUnits())
	}
	// 192^-0.5 times the square of 0.1 ln 40 + 1, as in the reference.
	if got := float64(c.AttentionScale()); math.Abs(got-1.8738542/math.Sqrt(192)) > 1e-7 || c.Rope.Amplitude != 1 {
		t.Errorf("scale %g, amplitude %g", got, c.Rope.Amplitude)
	}
	for heads, units := range map[int]int{16: 16, 20: 10, 7: 7, 128: 16, 34: 2, 1: 1} {
		if c.Heads = heads; c.HeadUnits() != units {
			t.Errorf("%d heads in %d units, want %d", heads, c.HeadUnits(), units)
		}
	}
}

func TestDeepseekConfigs(t *testing.T) {
	for _, test := range []struct {
		name string
		c    change
		want func(c *model.Config) bool
	}{
		{"deepseek_v3", nil, func(c *model.Config) bool {
			return c.MoE.Shared == 48 && c.MoE.Router == (model.Router{Score: model.Sigmoid, Normalise: true,
				Scale: 2.5, Bias: true, Groups: 4, TopGroups: 2, GroupTop: 2}) && reflect.DeepEqual(c.MoE.Dense, []int{0})
		}},
		{"deepseek_v3", change{"q_lora_rank": nil}, func(c *model.Config) bool { return c.Latent.QueryRank == 0 }},
		{"deepseek_v3", change{"q_lora_rank": remove}, func(c *model.Config) bool { return c.Latent.QueryRank == 1536 }},
		{"deepseek_v3", change{"n_routed_experts": nil}, func(c *model.Config) bool { return c.MoE.Experts == 0 }},
		{"deepseek_v3", change{"first_k_dense_replace": 3}, func(c *model.Config) bool { return c.MoE.Experts == 0 }},
		{"deepseek_v3", change{"n_shared_experts": nil}, func(c *model.Config) bool { return c.MoE.Shared == 0 }},
		{"deepseek_v2", nil, func(c *model.Config) bool {
			return c.MoE.Shared == 64 &&
				c.MoE.Router == (model.Router{Score: model.Softmax, Scale: 1.5, Groups: 3, TopGroups: 2, GroupTop: 1}) && c.Rope.Amplitude > 1
		}},
		{"deepseek_v2", change{"topk_method": "greedy"}, func(c *model.Config) bool { return c.MoE.Router.Groups == 0 }},
		{"deepseek_v2", change{"rope_scaling": nil}, func(c *model.Config) bool { return c.AttentionScale() == float32(1/math.Sqrt(20)) }},
	} {
		if c, err := deepseekConfig(t, test.name, test.c); err != nil || !test.want(&c) {
			t.Errorf("%s %v: %+v, %v", test.name, test.c, c, err)
		}
	}
	for field, v := range map[string]any{"attention_bias": true, "rope_interleave": false, "qk_rope_head_dim": 7,
		"kv_lora_rank": -1, "topk_method": "greedy", "scoring_func": "softmax", "moe_layer_freq": 2} {
		if _, err := deepseekConfig(t, "deepseek_v3", change{field: v}); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s %v: %v", field, v, err)
		}
	}
	if _, err := deepseekConfig(t, "deepseek_v2", change{"norm_topk_prob": true}); !errors.Is(err, model.ErrUnsupported) {
		t.Errorf("norm_topk_prob of V2: %v", err)
	}
}

// Layers after the last predict further tokens: they may be present, others may not.
func TestDeepseekBeyond(t *testing.T) {
	c := model.Config{Layers: 61}
	for name, want := range map[string]bool{"model.layers.61.eh_proj.weight": true, "model.layers.60.eh_proj.weight": false,
		"model.layers.700.x": false, "model.layersx": false, "lm_head.bias": false} {
		if model.AfterLast(&c, name) != want {
			t.Errorf("%s: %v", name, !want)
		}
	}
}

// Caches of every type hold the rows of the reference models.
func TestLatentCacheValidates(t *testing.T) {
	for _, name := range []string{"deepseek_v2", "deepseek_v3"} {
		data, err := os.ReadFile(filepath.Join("../testdata", name, model.ConfigFile))
		if err != nil {
			t.Fatal(err)
		}
		c, err := model.ParseConfig("d", data, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, kv := range []tensor.DType{tensor.F32, tensor.BF16, tensor.Int8} {
			if err := c.CacheLayout(kv).Validate(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}
