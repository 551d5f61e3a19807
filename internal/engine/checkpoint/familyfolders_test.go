package checkpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/model/families"
)

// Folders of the other families' reference models open, with the frequencies of transformers.
func TestFamilyCheckpoints(t *testing.T) {
	for name, arch := range map[string]string{"qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM",
		"mistral": "MistralForCausalLM", "mixtral": "MixtralForCausalLM", "qwen3_moe": "Qwen3MoeForCausalLM",
		"gpt_oss": families.GptOss, "olmo2": "Olmo2ForCausalLM", "olmo3": "Olmo3ForCausalLM",
		"exaone4": "Exaone4ForCausalLM", "seed_oss": "SeedOssForCausalLM", "hunyuan_v1_dense": "HunYuanDenseV1ForCausalLM",
		"cohere": "CohereForCausalLM", "cohere_qk_norm": "CohereForCausalLM", "cohere2": "Cohere2ForCausalLM",
		"granite": "GraniteForCausalLM", "gemma": "GemmaForCausalLM", "gemma2": "Gemma2ForCausalLM",
		"gemma3": "Gemma3ForCausalLM", "gemma4_31b": families.Gemma4, "gemma4_e2b": families.Gemma4,
		"gemma4_26b": families.Gemma4, "mistral_window": "MistralForCausalLM", "qwen2_window": "Qwen2ForCausalLM",
		"deepseek_v2": "DeepseekV2ForCausalLM", "deepseek_v3": "DeepseekV3ForCausalLM",
		"phi3": "Phi3ForCausalLM", "phi3_longrope": "Phi3ForCausalLM",
		"mistral3": "Ministral3ForCausalLM", "ernie4_5": "Ernie4_5ForCausalLM", "glm4": "Glm4ForCausalLM", "glm": "GlmForCausalLM",
		"glm4_moe": "Glm4MoeForCausalLM", "qwen2_moe": "Qwen2MoeForCausalLM", "minimax_m2": "MiniMaxM2ForCausalLM",
		"olmoe": "OlmoeForCausalLM", "granitemoe": "GraniteMoeForCausalLM",
		"ernie4_5_moe": "Ernie4_5_MoeForCausalLM", "hy_v3": "HYV3ForCausalLM", "hunyuan_v1_moe": "HunYuanMoEV1ForCausalLM",

		"glm4_moe_lite": "Glm4MoeLiteForCausalLM", "llama4": families.Llama4, "deepseek_v32": families.DeepseekV32,
		"glm_moe_dsa": "GlmMoeDsaForCausalLM",
		"smollm3":     "SmolLM3ForCausalLM", "qwen2_5_vl": "Qwen2ForCausalLM", "qwen3_vl_moe": "Qwen3MoeForCausalLM",
		"qwen3_5": "Qwen3_5ForCausalLM", "qwen3_5_uneven": "Qwen3_5ForCausalLM", "lfm2": "Lfm2ForCausalLM",
		"lfm2_moe": families.LFM2MoE, "granite_hybrid": families.GraniteHybrid, "granite_hybrid_moe": families.GraniteHybrid,
		"qwen3_5_moe": "Qwen3_5MoeForCausalLM", "qwen3_next": "Qwen3NextForCausalLM"} {
		dir := filepath.Join("../model/testdata", name)
		c, err := Open(dir)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		family, _ := model.Lookup(arch)
		var golden struct {
			InvFreq any `json:"inv_freq"` // a list, or one per rotation by name
		}
		readInto(t, filepath.Join(dir, "goldens.json"), &golden)
		want := [][]any{}
		switch g := golden.InvFreq.(type) {
		case []any:
			want = append(want, g)
		case map[string]any:
			for _, key := range []string{"inv_freq", "full_attention_inv_freq", "sliding_attention_inv_freq"} {
				if list, ok := g[key].([]any); ok {
					want = append(want, list)
				}
			}
		}
		// that of layers without rotary positions
		got := slices.DeleteFunc(c.Config.Rotations(), func(r model.Rotation) bool { return r.Freq[0] == 0 })
		if n := len(c.Config.Rotations()); c.Config.RotationCount() != n {
			t.Errorf("%s: %d rotations, the count is %d", name, n, c.Config.RotationCount())
		}
		if len(c.Config.Unrotated) == c.Config.Layers {
			got = nil // no layer rotates
		}
		if c.Config.Architecture != arch || slices.ContainsFunc(c.Extra(), func(name string) bool {
			return !isTower(name) && (family.Beyond == nil || !family.Beyond(&c.Config, name))
		}) || c.nested != (len(c.Extra()) > 0) || len(got) != len(want) {
			t.Errorf("%s: %+v, extra %v, %d rotations, want %d", name, c.Config, c.Extra(), len(got), len(want))
		}
		for r := range want {
			for i := range want[r] {
				if w := want[r][i].(float64); math.Abs(got[r].Freq[i]-w) > 1e-6*w {
					t.Errorf("%s: frequency %d of rotation %d is %g, want %g", name, i, r, got[r].Freq[i], w)
				}
			}
		}
		if v5, err := os.ReadFile(filepath.Join(dir, "config.v5.json")); err == nil {
			again, err := model.ParseConfig(dir, v5, nil)
			again.DType, again.BOS, again.EOS = c.Config.DType, c.Config.BOS, c.Config.EOS
			if a, b := asJSON(t, again), asJSON(t, c.Config); err != nil || !bytes.Equal(a, b) {
				t.Errorf("%s: config.json of transformers 5 reads as %s, that of 4 as %s (%v)", name, a, b, err)
			}
		}
		names := c.names()
		first := 0 // layer with attention
		for c.Config.Recurrent(first) {
			first++
		}
		l := LlamaLayer(first)
		if strings.HasPrefix(arch, "Lfm2") { // its norms have other names
			l = c.Config.Layer(first)
		}
		if slices.Contains(names, l.QNorm) != (c.Config.QKNorm && c.Config.QKNormOf != model.OfRotatedHeads) ||
			slices.Contains(names, l.Q.Bias) != c.Config.QKVBias || slices.Contains(names, l.O.Bias) != c.Config.OutBias {
			t.Errorf("%s: tensors %v", name, names)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

// The name determines the family, not the tensors: with a wrong name, tensors are left over or
// missing, or a setting is refused.
func TestWrongFamily(t *testing.T) {
	for from, to := range map[string]string{"qwen2": "LlamaForCausalLM", "qwen3": "MistralForCausalLM",
		"mistral": "Qwen3ForCausalLM", "mixtral": "Qwen3MoeForCausalLM", "qwen3_moe": "Qwen3ForCausalLM",
		"deepseek_v2": "LlamaForCausalLM", "deepseek_v3": "LlamaForCausalLM", "phi3": "LlamaForCausalLM"} {
		c := Checkpoint{Dir: filepath.Join("../model/testdata", from), at: map[string]place{}}
		var raw map[string]any
		readInto(t, filepath.Join(c.Dir, model.ConfigFile), &raw)
		raw["architectures"] = []string{to}
		cfg, err := model.ParseConfig(c.Dir, asJSON(t, raw), nil)
		if err == nil {
			c.Config = cfg
			if err = c.mapWeights(); err == nil {
				err = c.check()
			}
			c.Close()
		}
		if !errors.Is(err, model.ErrMismatch) && !errors.Is(err, model.ErrMissing) && !errors.Is(err, model.ErrUnsupported) {
			t.Errorf("%s as %s: %v", from, to, err)
		}
	}
}

func readInto(t *testing.T, path string, dst any) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, dst)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func asJSON(t *testing.T, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
