package families

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/model/tinyconfig"
	"github.com/shoal-llm/shoal/internal/engine/safetensors"
	"github.com/shoal-llm/shoal/internal/testlevel"
)

// hostileValues replace settings. Most are of the wrong kind or size for each of them.
var hostileValues = []any{nil, 0, -1, 1, 2, 3, 7, 1 << 13, 1e9, 1e300, -1e300, 0.5, 1e-30, 1.5, "", "x", true, false,
	[]any{}, []any{0}, []any{"x"}, []any{-1, 1e9}, []any{"full_attention"}, []any{"sliding_attention", "full_attention"},
	map[string]any{}, map[string]any{"rope_type": "yarn"}, map[string]any{"x": map[string]any{}}}

// TestHostileSettings replaces each setting of each architecture by hostile values. ParseConfig must
// return an error that names file and field, or a config that all other code can use.
func TestHostileSettings(t *testing.T) {
	keys := map[string]bool{"kv_lora_rank": true, "partial_rotary_factor": true, "layer_types": true,
		"full_attention_interval": true, "linear_conv_kernel_dim": true,
		"decoder_sparse_step": true, "per_layer_config": true, "no_rope_layer_interval": true, "shared_expert_intermediate_size": true}
	for _, name := range model.Architectures() {
		for key := range tiny(t, name) {
			keys[key] = true
		}
	}
	for i, name := range model.Architectures() {
		plain := tiny(t, name)
		for j, key := range slices.Sorted(maps.Keys(keys)) {
			_, own := plain[key]
			for k, v := range hostileValues {
				if !own && !testlevel.Long() && (i+3*j+k)%4 > 0 { // a quarter of the values of other architectures' settings
					continue
				}
				c := maps.Clone(plain)
				c[key] = v
				tryConfig(t, fmt.Sprintf("%s with %s %v", name, key, v), c)
				if inner, ok := plain[key].(map[string]any); ok {
					for part := range inner {
						c, inner := maps.Clone(plain), maps.Clone(inner)
						inner[part], c[key] = v, inner
						tryConfig(t, fmt.Sprintf("%s with %s.%s %v", name, key, part, v), c)
					}
				}
			}
		}
	}
}

func tiny(t *testing.T, architecture string) (c map[string]any) {
	t.Helper()
	text, err := tinyconfig.Of(architecture)
	if err == nil {
		err = json.Unmarshal(text, &c)
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func tryConfig(t *testing.T, what string, config map[string]any) {
	t.Helper()
	text, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if r := recover(); r != nil {
			t.Errorf("%s: panic: %v", what, r)
		}
	}()
	c, err := model.ParseConfig("d", text, nil)
	if err != nil {
		if e, ok := errors.AsType[*model.Error](err); !ok || e.File == "" || e.Field == "" || e.Detail == "" ||
			strings.HasSuffix(err.Error(), ": ") {
			t.Errorf("%s: error without file, field or detail: %v", what, err)
		}
		return
	}
	if c.Heads%c.KVHeads != 0 || c.HeadDim < 2 || c.Windows != nil && len(c.Windows) != c.Layers {
		t.Errorf("%s: accepted heads %d, KV heads %d, width %d, windows %v", what, c.Heads, c.KVHeads, c.HeadDim, c.Windows)
		return
	}
	for _, s := range c.Tensors() {
		if n, ok := safetensors.ByteSize(s.Shape, 8); !ok || n <= 0 {
			t.Errorf("%s: tensor %q of shape %v", what, s.Name, s.Shape)
			return
		}
	}
	for _, r := range c.Rotations() {
		for _, v := range r.Freq {
			if math.IsNaN(v) || v < 0 || v > 1 {
				t.Errorf("%s: frequency %g", what, v)
				return
			}
		}
	}
	if s := float64(c.AttentionScale()); !(s > 0) || math.IsInf(s, 0) {
		t.Errorf("%s: scores scaled by %g", what, s)
	}
	for i := range c.Layers {
		if c.KVOwner(i) < 0 || c.Heads%c.KVOf(i).Heads != 0 || c.FFNOf(i) < 1 || c.RopeOf(i) >= len(c.Rotations()) {
			t.Errorf("%s: layer %d: owner %d, %+v, rotation %d", what, i, c.KVOwner(i), c.KVOf(i), c.RopeOf(i))
			return
		}
	}
	_, _, _ = c.CacheRow()
	_ = c.CacheWindows()
}
