package checkpoint_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/gguf"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/model/modeltest"
)

// seeing writes a decoder's checkpoint as one of a multimodal model.
func seeing(t testing.TB, from string, rename func(string) string) string {
	t.Helper()
	dir := t.TempDir()
	var text map[string]any
	data, err := os.ReadFile(filepath.Join(from, "config.json"))
	check(t, err)
	check(t, json.Unmarshal(data, &text))
	outer := map[string]any{"architectures": []string{"Gemma3ForConditionalGeneration"},
		"eos_token_id": text["eos_token_id"], "torch_dtype": text["torch_dtype"],
		"vision_config": map[string]any{"hidden_size": 16}, "text_config": text, "mm_tokens_per_image": 256}
	for _, key := range []string{"architectures", "eos_token_id", "torch_dtype"} {
		delete(text, key)
	}
	data, err = json.Marshal(outer)
	check(t, err)
	put(t, filepath.Join(dir, "config.json"), data)
	file, err := os.ReadFile(filepath.Join(from, "model.safetensors"))
	check(t, err)
	header, data := modeltest.Parts(file)
	for _, name := range []string{"vision_tower.vision_model.head.weight",
		"model.vision_tower.encoder.layers.0.mlp.fc1.weight", "multi_modal_projector.mm_soft_emb_norm.weight"} {
		header[name] = object{"dtype": "BF16", "shape": []int{2}, "data_offsets": []int{len(data), len(data) + 4}}
		data = append(data, 1, 2, 3, 4)
	}
	renamed := map[string]any{}
	for name, e := range header {
		if name != "__metadata__" {
			name = rename(name)
		}
		renamed[name] = e
	}
	put(t, filepath.Join(dir, "model.safetensors"), modeltest.File(renamed, data))
	return dir
}

func isEye(name string) bool {
	return strings.Contains(name, "vision_tower") || strings.Contains(name, "multi_modal")
}

func older(name string) string {
	if isEye(name) {
		return name
	}
	return "language_model." + name
}

func later(name string) string {
	rest, ok := strings.CutPrefix(name, "model.")
	if isEye(name) || !ok {
		return name
	}
	return "model.language_model." + rest
}

// Gemma3ForConditionalGeneration is read as its decoder, in both spellings.
func TestNested(t *testing.T) {
	const from = "../model/testdata/gemma3"
	hub := open(t, from)
	for name, rename := range map[string]func(string) string{"older": older, "later": later} {
		c := open(t, seeing(t, from, rename))
		want := hub.Config
		if c.Config.BOS = want.BOS; fmt.Sprintf("%+v", c.Config) != fmt.Sprintf("%+v", want) {
			t.Errorf("%s:\n%+v\nwant\n%+v", name, c.Config, want)
		}
		for _, s := range hub.Config.Tensors() {
			equalTensors(t, hub, c, s.Name, 0)
		}
		if slices.ContainsFunc(c.Extra(), func(name string) bool { return !isEye(name) }) || len(c.Extra()) != 3 {
			t.Errorf("%s: extra %v", name, c.Extra())
		}
	}
	// Published folders leave heads and vocabulary to the configuration class.
	text := `{"architectures":["Gemma3ForConditionalGeneration"],"eos_token_id":[1,106],"torch_dtype":"bfloat16","text_config":{"hidden_size":2560,"intermediate_size":10240,"num_hidden_layers":34,"rope_scaling":{"factor":8.0,"rope_type":"linear"},"sliding_window":1024}}`
	c, err := model.ParseConfig("d", []byte(text), nil)
	if err != nil || c.Heads != 8 || c.KVHeads != 4 || c.HeadDim != 256 || c.Vocab != 262208 ||
		c.MaxPositions != 131072 || c.Window(0) != 1024 || c.Window(5) != 0 || len(c.EOS) != 2 || c.Rope.Factor != 8 {
		t.Errorf("%+v, %v", c, err)
	}
	for text, want := range map[string]string{
		`{"architectures":["Gemma3ForConditionalGeneration"]}`:                                                                 `field "text_config": missing`,
		`{"architectures":["Gemma3ForConditionalGeneration"],"text_config":null}`:                                              `field "text_config": missing`,
		`{"architectures":["Gemma3ForConditionalGeneration"],"text_config":[]}`:                                                `"text_config": [] is not an object`,
		`{"architectures":["Gemma3ForConditionalGeneration"],"text_config":{"hidden_size":-1}}`:                                `field "text_config.hidden_size": -1`,
		`{"architectures":["Gemma3ForConditionalGeneration"],"text_config":{"hidden_act":"gelu","attn_logit_softcapping":-1}}`: `field "text_config.attn_logit_softcapping"`,
	} {
		if _, err := model.ParseConfig("d", []byte(text), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
	// An extra tensor inside the decoder, and one that is present in both spellings.
	dir := seeing(t, from, func(name string) string {
		if strings.HasPrefix(name, "vision_tower") {
			return "language_model.model.layers.0.self_attn.sinks"
		}
		return older(name)
	})
	if _, err := checkpoint.Open(dir); !errors.Is(err, model.ErrMismatch) || !strings.Contains(err.Error(), "sinks") {
		t.Error(err)
	}
	dir = seeing(t, from, func(name string) string {
		if strings.HasPrefix(name, "vision_tower") {
			return "model.language_model.norm.weight"
		}
		return older(name)
	})
	if _, err := checkpoint.Open(dir); !errors.Is(err, model.ErrFormat) || !strings.Contains(err.Error(), `tensor "model.norm.weight": is also in`) {
		t.Error(err)
	}
	var deep = `{"architectures":["Gemma3ForConditionalGeneration"],"text_config":` + strings.Repeat(`{"text_config":`, 4000) + `{}` + strings.Repeat("}", 4001)
	if c, err := model.ParseConfig("d", []byte(deep), nil); err != nil || c.Hidden != 2304 {
		t.Errorf("a text_config within a text_config: %+v, %v", c, err)
	}
}

// Other wrappers: which decoder they hold, and which of two settings counts.
func TestWrappers(t *testing.T) {
	const text = `"hidden_size":64,"num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,"intermediate_size":96,"vocab_size":100,"rope_theta":1e6`
	for _, test := range []struct {
		config string
		want   func(c *model.Config) bool
		err    string
	}{
		{`{"architectures":["Qwen2_5_VLForConditionalGeneration"],` + text + `,"tie_word_embeddings":true,"rope_scaling":{"type":"mrope","mrope_section":[2,3,3]}}`,
			func(c *model.Config) bool {
				return c.Architecture == "Qwen2ForCausalLM" && c.Tied && c.Rope.Type == "" && c.Rope.Theta == 1e6 && c.NormEps == 1e-5
			}, ""},
		{`{"model_type":"qwen2_vl","tie_word_embeddings":false,"text_config":{"tie_word_embeddings":true,` + text + `}}`, func(c *model.Config) bool { return c.Tied && c.QKVBias }, ""},
		{`{"architectures":["Qwen3VLForConditionalGeneration"],"tie_word_embeddings":true,"text_config":{"tie_word_embeddings":false,"head_dim":null,` + text + `,"rope_scaling":{"rope_type":"default","mrope_interleaved":true,"mrope_section":[24,20,20]}}}`,
			func(c *model.Config) bool {
				return c.Architecture == "Qwen3ForCausalLM" && c.Tied && c.HeadDim == 128 && c.MaxPositions == 128000
			}, ""},
		{`{"architectures":["Qwen3VLForConditionalGeneration"],"tie_word_embeddings":false,"text_config":{"tie_word_embeddings":true,` + text + `}}`, func(c *model.Config) bool { return !c.Tied }, ""},
		{`{"architectures":["Qwen3VLForConditionalGeneration"],"text_config":{"tie_word_embeddings":true,` + text + `}}`, func(c *model.Config) bool { return c.Tied }, ""},
		{`{"architectures":["Qwen3VLForConditionalGeneration"],` + text + `}`, nil, `field "text_config": missing`},
		{`{"architectures":["Qwen3VLForConditionalGeneration"],"text_config":{` + text + `,"rope_scaling":{"type":"mrope","factor":2,"partial_rotary_factor":0.5}}}`, nil, "partial_rotary_factor"},
		{`{"model_type":"qwen3_5","tie_word_embeddings":true,"vision_config":{},"text_config":{"model_type":"qwen3_5_text","tie_word_embeddings":false,"head_dim":16,` + strings.Replace(text, `"rope_theta":1e6`, `"full_attention_interval":2,"mtp_num_hidden_layers":1,"mamba_ssm_dtype":"float32","rope_parameters":{"mrope_interleaved":true,"mrope_section":[11,11,10],"rope_type":"default","rope_theta":1e7,"partial_rotary_factor":0.25}`, 1) + `}}`,
			func(c *model.Config) bool {
				return c.Architecture == "Qwen3_5ForCausalLM" && c.Tied && c.Rotated == 4 && c.Rope.Theta == 1e7 && slices.Equal(c.Delta.Full, []int{1})
			}, ""},
		{`{"architectures":["Qwen3_5MoeForConditionalGeneration"],"text_config":{"shared_expert_intermediate_size":96,` + strings.Replace(text, `"intermediate_size":96,`, `"layer_types":["full_attention","linear_attention"],`, 1) + `}}`,
			func(c *model.Config) bool {
				return c.Architecture == "Qwen3_5MoeForCausalLM" && c.MoE.Experts == 256 && c.MoE.PerToken == 8 &&
					c.MoE.FFN == 512 && c.MoE.Shared == 96 && c.MoE.Gated && c.MoE.Router.Normalise && c.HeadDim == 256 && c.Recurrent(1)
			}, ""},
		{`{"architectures":["Mistral3ForConditionalGeneration"],"text_config":{"model_type":"mistral",` + text + `,"sliding_window":null}}`, func(c *model.Config) bool { return c.Architecture == "MistralForCausalLM" && c.Windows == nil }, ""},
		{`{"architectures":["KimiK25ForConditionalGeneration"],"tie_word_embeddings":false,"text_config":{"model_type":"kimi_k2",` + text + `,"kv_lora_rank":16,"n_group":1,"topk_group":1,"n_routed_experts":384,"routed_scaling_factor":2.827,"first_k_dense_replace":1}}`,
			func(c *model.Config) bool {
				return c.Architecture == "DeepseekV3ForCausalLM" && c.MoE.Experts == 384 && c.MoE.Router.Groups == 0 && len(c.MoE.Dense) == 1
			}, ""},
		{`{"architectures":["Mistral3ForConditionalGeneration"],"text_config":{"model_type":"pixtral",` + text + `}}`, nil, `field "text_config.model_type": decoder "pixtral" is not supported`},
		{`{"architectures":["Mistral3ForConditionalGeneration"],"text_config":{"model_type":7}}`, nil, "text_config.model_type"},
	} {
		c, err := model.ParseConfig("d", []byte(test.config), nil)
		if test.err != "" {
			if err == nil || !strings.Contains(err.Error(), test.err) {
				t.Errorf("%s: %v, want %q", test.config, err, test.err)
			}
		} else if err != nil || !test.want(&c) {
			t.Errorf("%s: %+v, %v", test.config, c, err)
		}
	}
}

// Stacked experts are the same in both layouts, and wrong shapes are refused.
func TestStackedExperts(t *testing.T) {
	const from = "../model/testdata/qwen3_vl_moe"
	turned := open(t, from)
	file, err := os.ReadFile(filepath.Join(from, "model.safetensors"))
	check(t, err)
	header, data := modeltest.Parts(file)
	for name, e := range header {
		if !strings.Contains(name, ".experts.") {
			continue
		}
		entry := e.(map[string]any)
		at, shape := entry["data_offsets"].([]any), entry["shape"].([]any)
		stack := data[int(at[0].(float64)):int(at[1].(float64))]
		experts, rows, cols := int(shape[0].(float64)), int(shape[1].(float64)), int(shape[2].(float64))
		plain := make([]byte, 0, len(stack))
		for x := range experts {
			for c := range cols {
				for r := range rows {
					i := 2 * ((x*rows+r)*cols + c)
					plain = append(plain, stack[i:i+2]...)
				}
			}
		}
		copy(stack, plain)
		entry["shape"] = []int{experts, cols, rows}
	}
	config, err := os.ReadFile(filepath.Join(from, "config.json"))
	check(t, err)
	dir := t.TempDir()
	put(t, filepath.Join(dir, "config.json"), config)
	put(t, filepath.Join(dir, "model.safetensors"), modeltest.File(header, data))
	plain := open(t, dir)
	for _, s := range turned.Config.Tensors() {
		equalTensors(t, turned, plain, s.Name, 0)
	}
	put(t, filepath.Join(dir, "config.json"), bytes.Replace(config, []byte(`"moe_intermediate_size": 32`), []byte(`"moe_intermediate_size": 31`), 1))
	if _, err := checkpoint.Open(dir); !errors.Is(err, model.ErrMismatch) || !strings.Contains(err.Error(),
		"has shape [6 64 48] and model.layers.0.mlp.experts.down_proj [6 48 32]; 6 experts of width 31 want [6 62 48]") {
		t.Error(err)
	}
}

// llama.cpp has names of its own for the decoders of Qwen's wrappers, and keys for images.
func TestGGUFWrappers(t *testing.T) {
	for from, to := range map[string]string{"qwen2": "qwen2vl", "qwen3": "qwen3vl", "qwen3_moe": "qwen3vlmoe"} {
		hub := open(t, filepath.Join("../model/testdata", from))
		g := modeltest.Convert(hub, always(gguf.F32))
		old := strings.ReplaceAll(from, "_", "") + "."
		for i, k := range g.Meta {
			if rest, ok := strings.CutPrefix(k.Name, old); ok {
				g.Meta[i].Name = to + "." + rest
			}
		}
		g.Unset("general.architecture")
		g.Set("general.architecture", to)
		g.Set(to+".rope.dimension_sections", []int32{4, 2, 2, 0})
		g.Set(to+".n_deepstack_layers", uint32(3))
		path := filepath.Join(t.TempDir(), "m.gguf")
		put(t, path, g.Bytes())
		got := open(t, path)
		for _, s := range hub.Config.Tensors() {
			equalTensors(t, hub, got, s.Name, 0)
		}
	}
}
