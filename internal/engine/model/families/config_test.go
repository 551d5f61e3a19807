package families

import (
	"cmp"
	"encoding/json"
	"errors"
	"maps"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/model/rotary"
	"github.com/shoal-llm/shoal/internal/engine/safetensors"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// base is a config with every relevant field; tests change one at a time.
func base() map[string]any {
	return map[string]any{
		"architectures": []string{"LlamaForCausalLM"}, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
		"num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 100, "max_position_embeddings": 256,
		"rms_norm_eps": 1e-5, "rope_theta": 5e5, "hidden_act": "silu", "torch_dtype": "bfloat16", "tie_word_embeddings": true,
		"bos_token_id": 0, "eos_token_id": 1,
	}
}

type change map[string]any

var remove = struct{}{}

func with(c change) []byte {
	m := base()
	for k, v := range c {
		if v == remove {
			delete(m, k)
		} else {
			m[k] = v
		}
	}
	data, err := json.Marshal(m)
	if err != nil {
		panic(err)
	}
	return data
}

func TestConfigForms(t *testing.T) {
	llama3 := change{"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
		"original_max_position_embeddings": 128}
	five := maps.Clone(llama3)
	five["rope_theta"] = 5e5
	for name, test := range map[string]struct {
		change     change
		generation string
		want       func(*model.Config)
	}{
		"plain":            {},
		"kv heads default": {change: change{"num_key_value_heads": nil}, want: func(c *model.Config) { c.KVHeads = 4 }},
		"head_dim null":    {change: change{"head_dim": nil}},
		"head_dim apart":   {change: change{"head_dim": 24}, want: func(c *model.Config) { c.HeadDim = 24 }},
		"head_dim, odd division": {
			change: change{"head_dim": 24, "hidden_size": 50},
			want:   func(c *model.Config) { c.HeadDim, c.Hidden = 24, 50 },
		},
		"untied by default": {change: change{"tie_word_embeddings": remove}, want: func(c *model.Config) { c.Tied = false }},
		"biases": {
			change: change{"attention_bias": true, "mlp_bias": true},
			want:   func(c *model.Config) { c.QKVBias, c.OutBias, c.MLPBias = true, true, true },
		},
		"no bos, many eos": {
			change: change{"bos_token_id": nil, "eos_token_id": []int{5, 6}},
			want:   func(c *model.Config) { c.BOS, c.EOS = nil, []int32{5, 6} },
		},
		"generation_config first": {change: change{"eos_token_id": []int{9, 1}}, generation: `{"eos_token_id": [1, 4]}`, want: func(c *model.Config) { c.EOS = []int32{1, 4, 9} }},
		"generation_config alone": {change: change{"eos_token_id": nil}, generation: `{"eos_token_id": 7, "bos_token_id": 3}`, want: func(c *model.Config) { c.BOS, c.EOS = []int32{3}, []int32{7} }},
		"dtype of transformers 5": {
			change: change{"torch_dtype": remove, "dtype": "float16"},
			want:   func(c *model.Config) { c.DType = tensor.F16 },
		},
		"theta default":     {change: change{"rope_theta": nil}, want: func(c *model.Config) { c.Rope.Theta = 10000 }},
		"rope default type": {change: change{"rope_parameters": change{"rope_type": "default", "rope_theta": 5e5}}},
		"rope linear, old key": {
			change: change{"rope_scaling": change{"type": "linear", "factor": 2}},
			want:   func(c *model.Config) { c.Rope = rotary.Rope{Theta: 5e5, Type: "linear", Factor: 2} },
		},
		"rope llama3": {change: change{"rope_scaling": llama3}, want: func(c *model.Config) {
			c.Rope = rotary.Rope{Theta: 5e5, Type: "llama3", Factor: 8, LowFreq: 1, HighFreq: 4, OriginalMax: 128}
		}},
		"rope llama3, no middle waves": { // as Llama 4 Scout
			change: change{"rope_scaling": change{"rope_type": "llama3", "factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 1.0,
				"original_max_position_embeddings": 128}},
			want: func(c *model.Config) {
				c.Rope = rotary.Rope{Theta: 5e5, Type: "llama3", Factor: 16, LowFreq: 1, HighFreq: 1, OriginalMax: 128}
			}},
		"rope llama3, new form": {change: change{"rope_theta": remove, "rope_parameters": five}, want: func(c *model.Config) {
			c.Rope = rotary.Rope{Theta: 5e5, Type: "llama3", Factor: 8, LowFreq: 1, HighFreq: 4, OriginalMax: 128}
		}},
		"NaN and Infinity where nobody reads": {generation: `{"x": NaN, "y": [Infinity, -Infinity]}`},
		"rope llama3, no original length": {change: change{"rope_scaling": change{"rope_type": "llama3",
			"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}}, want: func(c *model.Config) {
			c.Rope = rotary.Rope{Theta: 5e5, Type: "llama3", Factor: 8, LowFreq: 1, HighFreq: 4, OriginalMax: 256}
		}},
		"both rope objects, equal": {
			change: change{
				"rope_scaling":    change{"type": "linear", "factor": 2},
				"rope_parameters": change{"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5},
			},
			want: func(c *model.Config) { c.Rope = rotary.Rope{Theta: 5e5, Type: "linear", Factor: 2} },
		},
		"both rope objects, empty": {change: change{"rope_scaling": change{}, "rope_parameters": change{}}},
		"theta in rope_parameters": {change: change{"rope_theta": remove, "rope_scaling": change{"type": "default"},
			"rope_parameters": change{"rope_theta": 5e5}}},
		"neutral keys": {change: change{"partial_rotary_factor": 1.0,
			"rope_scaling": change{"rope_type": "default", "attn_factor": 1, "partial_rotary_factor": nil}}},
		"neutral widths and bases": {change: change{"rotary_dim": 16, "rotary_ndims": nil, "rotary_emb_base": 5e5, "rope_local_base_freq": nil}},
		"neutral layers":           {change: change{"no_rope_layers": []int{1, 1}, "no_rope_layer_interval": 2}},
		"neutral interval":         {change: change{"no_rope_layers": []int{}, "no_rope_layer_interval": 4}},
		"neutral sections": {change: change{"mrope_section": nil,
			"rope_scaling": change{"type": "default", "mrope_section": []int{}, "short_factor": []int{1, 1}}}},
		"swish is silu": {change: change{"hidden_act": "swish"}},
	} {
		t.Run(name, func(t *testing.T) {
			want := model.Config{Architecture: "LlamaForCausalLM", Hidden: 64, Layers: 2, Heads: 4, KVHeads: 2, HeadDim: 16, FFN: 96, Vocab: 100,
				MaxPositions: 256, NormEps: 1e-5, Tied: true, Rope: rotary.Rope{Theta: 5e5}, BOS: []int32{0}, EOS: []int32{1}, DType: tensor.BF16}
			if test.want != nil {
				test.want(&want)
			}
			var generation []byte
			if test.generation != "" {
				generation = []byte(test.generation)
			}
			got, err := model.ParseConfig("m", with(test.change), generation)
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("got  %+v, %v\nwant %+v", got, err, want)
			}
		})
	}
}

// Every refusal names the file, the field and the value.
func TestConfigRefusals(t *testing.T) {
	rope := func(c change) change { return change{"rope_scaling": c} }
	for _, test := range []struct {
		change change
		kind   error
		want   []string
	}{
		{change{"architectures": []string{"GPT9"}}, model.ErrUnknownArch, []string{"GPT9", "LlamaForCausalLM"}},
		{change{"architectures": []string{"GPT9"}}, model.ErrUnsupported, nil},
		{change{"architectures": remove}, model.ErrFormat, []string{"architectures", "LlamaForCausalLM"}},
		{change{"architectures": remove, "model_type": "gpt9"}, model.ErrFormat, []string{"architectures", "LlamaForCausalLM"}},
		{change{"architectures": "LlamaForCausalLM"}, model.ErrFormat, []string{"architectures"}},
		{change{"hidden_size": remove}, model.ErrMissing, []string{"hidden_size"}},
		{change{"hidden_size": 1 << 40}, model.ErrOutOfRange, []string{"hidden_size", "1099511627776"}},
		{change{"hidden_size": -64}, model.ErrOutOfRange, []string{"hidden_size", "-64"}},
		{change{"hidden_size": 64.5}, model.ErrFormat, []string{"hidden_size", "64.5"}},
		{change{"hidden_size": "64"}, model.ErrFormat, []string{"hidden_size"}},
		{change{"hidden_size": 62}, model.ErrFormat, []string{"num_attention_heads", "62"}},
		{change{"num_hidden_layers": 0}, model.ErrOutOfRange, []string{"num_hidden_layers"}},
		{change{"num_hidden_layers": 1e6}, model.ErrOutOfRange, []string{"num_hidden_layers", "1000000"}},
		{change{"num_attention_heads": 0}, model.ErrOutOfRange, []string{"num_attention_heads"}},
		{change{"num_key_value_heads": 3}, model.ErrFormat, []string{"num_key_value_heads", "3"}},
		{change{"num_key_value_heads": 0}, model.ErrOutOfRange, []string{"num_key_value_heads"}},
		{change{"head_dim": 5}, model.ErrUnsupported, []string{"head_dim", "5"}},
		{change{"kv_lora_rank": 8}, model.ErrUnsupported, []string{"kv_lora_rank", "latent"}},
		{change{"architectures": []string{"Ministral3ForCausalLM"},
			"rope_scaling":    change{"type": "yarn", "factor": 4, "original_max_position_embeddings": 16, "llama_4_scaling_beta": 0.1},
			"rope_parameters": change{"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 16, "llama_4_scaling_beta": 0.2}},
			model.ErrFormat, []string{"llama_4_scaling_beta"}},
		{change{"architectures": []string{"Qwen3_5ForCausalLM"}, "full_attention_interval": 9},
			model.ErrUnsupported, []string{"full_attention_interval"}},
		{change{"head_dim": 12}, model.ErrUnsupported, []string{"head_dim", "12", "multiple of 8"}},
		{change{"head_dim": 584}, model.ErrUnsupported, []string{"head_dim", "584", "576"}},
		{change{"architectures": []string{"Gemma4ForCausalLM"}, "hidden_activation": nil, "head_dim": 12, "global_head_dim": 16},
			model.ErrUnsupported, []string{"\"head_dim\"", "12"}},
		{change{"architectures": []string{"Gemma4ForCausalLM"}, "hidden_activation": nil, "global_head_dim": 12},
			model.ErrUnsupported, []string{"global_head_dim", "12"}},
		{change{"architectures": []string{"DeepseekV3ForCausalLM"}, "kv_lora_rank": 20}, model.ErrUnsupported, []string{"kv_lora_rank", "20"}},
		{change{"head_dim": 1 << 20}, model.ErrOutOfRange, []string{"head_dim"}},
		{change{"intermediate_size": 1 << 30}, model.ErrOutOfRange, []string{"intermediate_size"}},
		{change{"vocab_size": 1 << 31}, model.ErrOutOfRange, []string{"vocab_size"}},
		{change{"max_position_embeddings": 1 << 50}, model.ErrOutOfRange, []string{"max_position_embeddings"}},
		{change{"rms_norm_eps": -1.0}, model.ErrOutOfRange, []string{"rms_norm_eps"}},
		{change{"rms_norm_eps": 0}, model.ErrOutOfRange, []string{"rms_norm_eps"}},
		{change{"hidden_act": "gelu"}, model.ErrUnsupported, []string{"hidden_act", "gelu", "silu"}},
		{change{"torch_dtype": "int4"}, model.ErrUnsupported, []string{"torch_dtype", "int4", "bfloat16"}},
		{change{"quantization_config": change{"quant_method": "aqlm"}}, model.ErrUnsupported, []string{"quantization_config", "gptq"}},
		{change{"quantization_config": change{}}, model.ErrUnsupported, []string{"quantization_config"}},
		{change{"tie_word_embeddings": "yes"}, model.ErrFormat, []string{"tie_word_embeddings"}},
		{change{"eos_token_id": "x"}, model.ErrFormat, []string{"eos_token_id"}},
		{change{"bos_token_id": make([]int, 1000)}, model.ErrOutOfRange, []string{"bos_token_id", "1000"}},
		{change{"rope_theta": 0}, model.ErrOutOfRange, []string{"rope_theta"}},
		{rope(change{"type": "longrope", "factor": 4}), model.ErrUnsupported, []string{"rope_scaling.type", "longrope", "llama3"}},
		{rope(change{"type": "yarn"}), model.ErrMissing, []string{"rope_scaling.factor"}},
		{rope(change{"type": "yarn", "factor": 1e6, "original_max_position_embeddings": 1 << 20}), model.ErrOutOfRange, []string{"rope_scaling"}},
		{rope(change{"rope_type": "dynamic", "factor": 4}), model.ErrUnsupported, []string{"rope_scaling.rope_type", "dynamic"}},
		{rope(change{"type": "linear"}), model.ErrMissing, []string{"rope_scaling.factor"}},
		{rope(change{"type": "linear", "factor": 0}), model.ErrOutOfRange, []string{"rope_scaling.factor"}},
		{rope(change{"type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 3.9, "original_max_position_embeddings": 8}),
			model.ErrFormat, []string{"high_freq_factor"}},
		{rope(change{"type": "default", "partial_rotary_factor": 0.5}), model.ErrUnsupported, []string{"partial_rotary_factor"}},
		{change{"rope_scaling": "linear"}, model.ErrFormat, []string{"rope_scaling"}},
		{rope(change{"type": "default", "llama_4_scaling_beta": 0.1}), model.ErrUnsupported, []string{"llama_4_scaling_beta"}},
		{change{"partial_rotary_factor": 0.5}, model.ErrUnsupported, []string{"partial_rotary_factor", "0.5"}},
		{change{"rotary_dim": 8}, model.ErrUnsupported, []string{"rotary_dim", "16"}},
		{change{"rotary_ndims": 8}, model.ErrUnsupported, []string{"rotary_ndims"}},
		{change{"rotary_emb_base": 10000}, model.ErrUnsupported, []string{"rotary_emb_base", "10000", "500000"}},
		{change{"rope_local_base_freq": 10000}, model.ErrUnsupported, []string{"rope_local_base_freq"}},
		{change{"no_rope_layers": []int{1, 0}}, model.ErrUnsupported, []string{"no_rope_layers", "[1,0]"}},
		{change{"no_rope_layer_interval": 2}, model.ErrUnsupported, []string{"no_rope_layer_interval", "2"}},
		{change{"mrope_section": []int{4, 2, 2}}, model.ErrUnsupported, []string{"mrope_section"}},
		{rope(change{"type": "default", "mrope_section": []int{4, 2, 2}}), model.ErrUnsupported,
			[]string{"rope_scaling.mrope_section", "[4,2,2]"}},
		{rope(change{"type": "default", "mrope_interleaved": true}), model.ErrUnsupported, []string{"rope_scaling.mrope_interleaved"}},
		{rope(change{"type": "default", "long_factor": []float64{1, 1.5}}), model.ErrUnsupported, []string{"rope_scaling.long_factor"}},
		{change{"rope_parameters": change{"rope_theta": 5e5, "rotary_dim": 8}}, model.ErrUnsupported, []string{"rope_parameters.rotary_dim"}},
		{change{"architectures": []string{"Gemma3ForCausalLM"}, "hidden_activation": "gelu_pytorch_tanh", "rope_local_base_freq": 2e4,
			"rope_parameters": change{"sliding_attention": change{"rope_theta": 3e4}}}, model.ErrFormat, []string{"rope_local_base_freq", "30000"}},
		{change{"rotary_pct": 0.25}, model.ErrUnsupported, []string{"rotary_pct"}},
		{change{"rope_parameters": change{"full_attention": change{"rope_type": "llama3"}}}, model.ErrUnsupported,
			[]string{"rope_parameters.full_attention"}},
		{change{"rope_parameters": change{"rope_theta": 5e5, "sliding_attention": change{}}}, model.ErrUnsupported,
			[]string{"rope_parameters.sliding_attention"}},
		{change{"rope_scaling": change{"type": "linear", "factor": 2}, "rope_parameters": change{}},
			model.ErrFormat, []string{"rope_parameters", "rope_scaling"}},
		{change{
			"rope_scaling":    change{"type": "linear", "factor": 2},
			"rope_parameters": change{"type": "linear", "factor": 3},
		}, model.ErrFormat, []string{"rope_parameters"}},
		{change{"rope_parameters": change{"rope_theta": 7}}, model.ErrFormat, []string{"rope_parameters.rope_theta"}},
	} {
		_, err := model.ParseConfig("some/dir", with(test.change), nil)
		if !errors.Is(err, test.kind) {
			t.Errorf("%v: got %v, want kind %v", test.change, err, test.kind)
			continue
		}
		for _, word := range append(test.want, "model: "+filepath.Join("some/dir", "config.json")) {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%v: %q lacks %q", test.change, err, word)
			}
		}
	}
	for _, text := range []string{"", "null", "[]", "{", `{"architectures":`, strings.Repeat("[", 1e6)} {
		if _, err := model.ParseConfig("d", []byte(text), nil); !errors.Is(err, model.ErrFormat) {
			t.Errorf("%.20q: got %v", text, err)
		}
	}
}

// Ids outside the vocabulary are ignored with a warning.
func TestConfigIgnoresTokensOutsideTheVocabulary(t *testing.T) {
	for _, c := range []struct {
		change     change
		generation string
		bos, eos   []int32
		warning    string
	}{
		{change{"eos_token_id": 100}, "", []int32{0}, nil, `config.json: field "eos_token_id": token 100`},
		{change{"eos_token_id": -1}, "", []int32{0}, nil, "token -1"},
		{change{"eos_token_id": []int{1, 1 << 40}}, "", []int32{0}, []int32{1}, "token 1099511627776"},
		{change{"bos_token_id": 100}, "", nil, []int32{1}, "bos_token_id"},
		{nil, `{"eos_token_id": [1000, 2]}`, []int32{0}, []int32{2, 1}, "generation_config.json"},
	} {
		got, err := model.ParseConfig("d", with(c.change), []byte(cmp.Or(c.generation, "{}")))
		if err != nil || !slices.Equal(got.BOS, c.bos) || !slices.Equal(got.EOS, c.eos) {
			t.Errorf("%v: BOS %v, EOS %v, %v; want %v, %v", c.change, got.BOS, got.EOS, err, c.bos, c.eos)
		}
		if len(got.Warnings) != 1 || !strings.Contains(got.Warnings[0].Error(), c.warning) ||
			!strings.Contains(got.Warnings[0].Error(), "of 100") {
			t.Errorf("%v: warnings %q, want one with %q", c.change, got.Warnings, c.warning)
		}
	}
}

// Without architectures, model_type determines the model.
func TestModelTypes(t *testing.T) {
	for kind, name := range types {
		_, wrapped := wrappers[name]
		if _, ok := model.Lookup(name); !ok && !wrapped {
			t.Errorf("model_type %q: the architecture %s is not registered", kind, name)
		}
	}
	for _, names := range []any{remove, nil, []string{}} {
		got, err := model.ParseConfig("d", with(change{"architectures": names, "model_type": "llama"}), nil)
		want, _ := model.ParseConfig("d", with(nil), nil)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("architectures %v: %+v, %v", names, got, err)
		}
	}
}

// Both forms that transformers wrote for one model give the same description.
func TestConfigOfTwoGenerations(t *testing.T) {
	var got [2]model.Config
	for i, name := range []string{"config.json", "config.v5.json"} {
		data, err := os.ReadFile("../testdata/llama/" + name)
		if err != nil {
			t.Fatal(err)
		}
		if got[i], err = model.ParseConfig(name, data, nil); err != nil {
			t.Fatal(err)
		}
		got[i].DType = 0 // the second was written from a model loaded as float32
	}
	if !reflect.DeepEqual(got[0], got[1]) {
		t.Errorf("\n%+v\n%+v", got[0], got[1])
	}
}

// The context of a YaRN model is its factor times the trained length, even if
// max_position_embeddings is shorter.
func TestYarnLengthensTheContext(t *testing.T) {
	for _, c := range []struct {
		positions int
		scaling   change
		key       string
		want      int
		original  int
	}{
		{8192, change{"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}, "rope_scaling", 32768, 8192},
		{8192, change{"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}, "rope_parameters", 32768, 8192},
		{8192, change{"type": "yarn", "factor": 4.0}, "rope_scaling", 32768, 8192},
		{40960, change{"type": "yarn", "factor": 4, "original_max_position_embeddings": 32768}, "rope_scaling", 131072, 32768},
		{163840, change{"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}, "rope_scaling", 163840, 4096},
		{65536, change{"type": "yarn", "factor": 2, "original_max_position_embeddings": 4096}, "rope_scaling", 65536, 4096},
		{1000, change{"type": "yarn", "factor": 1.5}, "rope_scaling", 1500, 1000},
		{8192, change{"type": "linear", "factor": 4.0}, "rope_scaling", 8192, 0},
		{8192, change{"type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4}, "rope_scaling", 8192, 8192},
	} {
		got, err := model.ParseConfig("d", with(change{"max_position_embeddings": c.positions, c.key: c.scaling}), nil)
		if err != nil || got.MaxPositions != c.want || got.Rope.OriginalMax != c.original {
			t.Errorf("%d positions, %v: context %d, original %d, %v; want %d, %d", c.positions, c.scaling,
				got.MaxPositions, got.Rope.OriginalMax, err, c.want, c.original)
		}
	}
}

func TestInvFreqGoldens(t *testing.T) {
	var golden struct {
		InvFreq []float64 `json:"inv_freq"`
	}
	readJSON(t, "../testdata/llama/goldens.json", &golden)
	data, err := os.ReadFile("../testdata/llama/config.json")
	if err != nil {
		t.Fatal(err)
	}
	c, err := model.ParseConfig("", data, nil)
	if err != nil {
		t.Fatal(err)
	}
	got := c.InvFreq()
	if len(got) != len(golden.InvFreq) {
		t.Fatalf("%d frequencies, want %d", len(got), len(golden.InvFreq))
	}
	for i, want := range golden.InvFreq { // float32 in the reference
		if math.Abs(got[i]-want) > 2e-7*want {
			t.Errorf("pair %d: %.9g, want %.9g", i, got[i], want)
		}
	}
}

// The same formulas with math.Pow.
func TestInvFreqTwin(t *testing.T) {
	for _, theta := range []float64{2, 10000, 500000, 1e6, 1e12} {
		for _, dim := range []int{2, 8, 24, 64, 128, 4096} {
			got := rotary.Rope{Theta: theta}.InvFreq(dim)
			linear := rotary.Rope{Theta: theta, Type: "linear", Factor: 3}.InvFreq(dim)
			three := rotary.Rope{Theta: theta, Type: "llama3", Factor: 8, LowFreq: 1, HighFreq: 4, OriginalMax: 8192}.InvFreq(dim)
			for i := range dim / 2 {
				want := math.Pow(theta, -2*float64(i)/float64(dim))
				if math.Abs(got[i]-want) > 4e-15*want || linear[i] != got[i]/3 {
					t.Fatalf("theta %g dim %d pair %d: %g, linear %g, want %g", theta, dim, i, got[i], linear[i], want)
				}
				smooth := (8192*want/(2*math.Pi) - 1) / 3
				smooth = max(0, min(1, smooth))
				if w := (1-smooth)*want/8 + smooth*want; math.Abs(three[i]-w) > 1e-13*want {
					t.Fatalf("llama3, theta %g dim %d pair %d: %g, want %g", theta, dim, i, three[i], w)
				}
			}
		}
	}
}

func FuzzConfig(f *testing.F) {
	f.Add(with(nil), []byte(`{"eos_token_id": [1, 4]}`))
	f.Add(with(change{"rope_scaling": change{"type": "linear", "factor": 2}}), []byte(nil))
	f.Add(with(change{"rope_parameters": change{"rope_type": "llama3", "rope_theta": 5e5, "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 8}}), []byte(`{}`))
	f.Add([]byte(`{"architectures":["LlamaForCausalLM"],"hidden_size":1e3}`), []byte(`[]`))
	f.Fuzz(func(t *testing.T, config, generation []byte) {
		c, err := model.ParseConfig("d", config, generation)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "model: ") {
				t.Fatalf("error without its prefix: %v", err)
			}
			return
		}
		if c.Heads%c.KVHeads != 0 || c.HeadDim < 2 || c.HeadDim > model.MaxHeadDim || c.Hidden > model.MaxHidden ||
			c.Vocab > model.MaxVocab || c.Layers > model.MaxLayers || !(c.NormEps > 0) {
			t.Fatalf("accepted %+v", c)
		}
		for _, s := range c.Tensors() {
			if n, ok := safetensors.ByteSize(s.Shape, 8); !ok || n <= 0 {
				t.Fatalf("tensor %q of shape %v", s.Name, s.Shape)
			}
		}
		for _, v := range c.InvFreq() {
			if !(v > 0) || v > 1 {
				t.Fatalf("frequency %g of %+v", v, c.Rope)
			}
		}
	})
}

func readJSON(t *testing.T, path string, dst any) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, dst)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// With equal factors, every wave is either kept or fully stretched.
func TestInvFreqWithoutMiddleWaves(t *testing.T) {
	const dim = 128
	r := rotary.Rope{Theta: 5e5, Type: "llama3", Factor: 16, LowFreq: 1, HighFreq: 1, OriginalMax: 8192}
	plain, kept := rotary.Powers(r.Theta, dim/2), 0
	for i, f := range r.InvFreq(dim) {
		want := plain[i]
		if 2*math.Pi/want > 8192 {
			want /= 16
		} else {
			kept++
		}
		if f != want {
			t.Errorf("pair %d has the frequency %g, want %g", i, f, want)
		}
	}
	if kept == 0 || kept == dim/2 {
		t.Errorf("%d of %d waves are kept", kept, dim/2)
	}
	// A wave of exactly the original length is neither shorter nor longer.
	const wave = 2 * math.Pi
	one := rotary.Rope{Theta: 2, Type: "llama3", Factor: 16, LowFreq: 1 / wave, HighFreq: 1 / wave, OriginalMax: 1}
	if long := 1 / one.LowFreq; long != wave {
		t.Fatalf("the wave %g is not %g", wave, long)
	}
	if f := one.InvFreq(2)[0]; f != 1 {
		t.Errorf("the wave of the original length has the frequency %g, want 1", f)
	}
}
