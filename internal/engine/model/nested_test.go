package model_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
	outer := map[string]any{"architectures": []string{"Gemma3ForConditionalGeneration"}, "eos_token_id": text["eos_token_id"], "torch_dtype": text["torch_dtype"],
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
	for _, name := range []string{"vision_tower.vision_model.head.weight", "model.vision_tower.encoder.layers.0.mlp.fc1.weight", "multi_modal_projector.mm_soft_emb_norm.weight"} {
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
	const from = "testdata/gemma3"
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
		if len(c.Extra()) != 0 {
			t.Errorf("%s: extra %v", name, c.Extra())
		}
	}
	// Published folders leave heads and vocabulary to the configuration class.
	text := `{"architectures":["Gemma3ForConditionalGeneration"],"eos_token_id":[1,106],"torch_dtype":"bfloat16","text_config":{"hidden_size":2560,"intermediate_size":10240,"num_hidden_layers":34,"rope_scaling":{"factor":8.0,"rope_type":"linear"},"sliding_window":1024}}`
	c, err := model.ParseConfig("d", []byte(text), nil)
	if err != nil || c.Heads != 8 || c.KVHeads != 4 || c.HeadDim != 256 || c.Vocab != 262208 || c.MaxPositions != 131072 || c.Window(0) != 1024 || c.Window(5) != 0 || len(c.EOS) != 2 || c.Rope.Factor != 8 {
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
	if _, err := model.Open(dir); !errors.Is(err, model.ErrMismatch) || !strings.Contains(err.Error(), "sinks") {
		t.Error(err)
	}
	dir = seeing(t, from, func(name string) string {
		if strings.HasPrefix(name, "vision_tower") {
			return "model.language_model.norm.weight"
		}
		return older(name)
	})
	if _, err := model.Open(dir); !errors.Is(err, model.ErrFormat) || !strings.Contains(err.Error(), `tensor "model.norm.weight": is also in`) {
		t.Error(err)
	}
	var deep = `{"architectures":["Gemma3ForConditionalGeneration"],"text_config":` + strings.Repeat(`{"text_config":`, 4000) + `{}` + strings.Repeat("}", 4001)
	if c, err := model.ParseConfig("d", []byte(deep), nil); err != nil || c.Hidden != 2304 {
		t.Errorf("a text_config within a text_config: %+v, %v", c, err)
	}
}
