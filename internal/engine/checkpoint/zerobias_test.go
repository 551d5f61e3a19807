package checkpoint_test

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/model/modeltest"
)

// withTensor copies a folder of one weight file and adds a tensor.
func withTensor(t *testing.T, from, name, dtype string, shape []int, data []byte) string {
	t.Helper()
	dir := t.TempDir()
	for _, file := range []string{"config.json", "model.safetensors"} {
		text, err := os.ReadFile(filepath.Join(from, file))
		check(t, err)
		if file == "model.safetensors" {
			header, old := modeltest.Parts(text)
			header[name] = map[string]any{"dtype": dtype, "shape": shape, "data_offsets": []int{len(old), len(old) + len(data)}}
			text = modeltest.File(header, append(slices.Clone(old), data...))
		}
		put(t, filepath.Join(dir, file), text)
	}
	return dir
}

// AutoGPTQ gave every module a bias, of zeros where the model has none. Such a bias changes nothing. Any
// other one is refused.
func TestZeroBias(t *testing.T) {
	for _, from := range []string{"../model/testdata/quantized/gptq", "../model/testdata/quantized/awq", "../model/testdata/llama"} {
		plain := open(t, from)
		for _, module := range []string{"model.layers.0.mlp.down_proj", "model.layers.1.self_attn.q_proj"} {
			w, err := plain.Tensor(module + ".weight")
			check(t, err)
			rows := w.Rows()
			zeros := make([]byte, 2*rows)
			minus := slices.Clone(zeros)
			minus[1] = 0x80
			for name, data := range map[string][]byte{"zero": zeros, "minus zero": minus} {
				c := open(t, withTensor(t, from, module+".bias", "F16", []int{rows}, data))
				if c.Hash() != plain.Hash() || len(c.Extra()) != len(plain.Extra()) {
					t.Errorf("%s: a bias of %s of %s counts: extra tensors %v", from, name, module, c.Extra())
				}
			}
			small := slices.Clone(zeros)
			small[len(small)-2] = 1
			for name, dir := range map[string]string{
				"not zero":      withTensor(t, from, module+".bias", "F16", []int{rows}, small),
				"longer":        withTensor(t, from, module+".bias", "F16", []int{rows + 1}, append(slices.Clone(zeros), 0, 0)),
				"a matrix":      withTensor(t, from, module+".bias", "F16", []int{1, rows}, zeros),
				"integers":      withTensor(t, from, module+".bias", "I16", []int{rows}, zeros),
				"of a stranger": withTensor(t, from, "model.layers.0.mlp.side_proj.bias", "F16", []int{rows}, zeros),
			} {
				_, err := checkpoint.Open(dir)
				if !errors.Is(err, model.ErrMismatch) || !strings.Contains(err.Error(), ".bias") {
					t.Errorf("%s: %s, %s: %v", from, module, name, err)
				}
			}
		}
	}
}

// A node that downloads parts of the files cannot read the bias, and need not: the whole checkpoint was checked.
func TestZeroBiasOfPart(t *testing.T) {
	from := withTensor(t, "../model/testdata/quantized/gptq", "model.layers.0.mlp.down_proj.bias", "F16", []int{64}, make([]byte, 128))
	whole := open(t, from)
	f := &copier{t: t, from: from, to: t.TempDir(), head: whole}
	put(t, filepath.Join(from, "generation_config.json"), []byte("{}"))
	f.prepare()
	part, err := checkpoint.OpenPartial(t.Context(), f.to, whole.Hash(), f)
	check(t, err)
	check(t, part.Close())
}

// The two settings are written by AutoRound and GPTQModel for modules with other bits than the rest.
func TestModulesWithOtherBits(t *testing.T) {
	base := map[string]any{"architectures": []string{"LlamaForCausalLM"}, "hidden_size": 64, "num_hidden_layers": 1,
		"num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 100}
	for text, want := range map[string]string{
		`{"quant_method":"gptq","bits":4,"group_size":128}`:                                                                        "int4",
		`{"quant_method":"gptq","bits":4,"group_size":128,"dynamic":null}`:                                                         "int4",
		`{"quant_method":"gptq","bits":4,"group_size":128,"dynamic":{"-:.*lm_head":{}}}`:                                           "int4",
		`{"quant_method":"gptq","bits":4,"group_size":128,"dynamic":{"-:.*q_proj":{"bits":8}}}`:                                    "int4",
		`{"quant_method":"gptq","bits":4,"group_size":128,"dynamic":{"+:.*down_proj":{"bits":3}}}`:                                 "int4",
		`{"quant_method":"gptq","bits":4,"group_size":128,"dynamic":{".*down_proj":{"bits":8}}}`:                                   "q8_0",
		`{"quant_method":"gptq","bits":4,"group_size":128,"dynamic":{"+:.*down_proj":{"group_size":16}}}`:                          "q8_0",
		`{"quant_method":"gptq","bits":4,"group_size":128,"dynamic":{"+:.*down_proj":{"desc_act":true}}}`:                          "q8_0",
		`{"quant_method":"auto-round","bits":4,"group_size":128,"packing_format":"auto_round:auto_gptq","extra_config":{}}`:        "int4",
		`{"quant_method":"auto-round","bits":4,"group_size":128,"extra_config":{"lm_head":{"bits":16,"data_type":"float"}}}`:       "int4",
		`{"quant_method":"auto-round","bits":4,"group_size":128,"extra_config":{"model.layers.0.mlp.down_proj":{"bits":8}}}`:       "q8_0",
		`{"quant_method":"auto-round","bits":4,"group_size":128,"extra_config":{"a":{"bits":4,"group_size":16}}}`:                  "q8_0",
		`{"quant_method":"compressed-tensors","format":"pack-quantized","config_groups":{"g":{"weights":{"num_bits":4}}}}`:         "int4",
		`{"quant_method":"compressed-tensors","format":"pack-quantized","config_groups":{"g":{"weights":{"actorder":"weight"}}}}`:  "int4",
		`{"quant_method":"compressed-tensors","format":"pack-quantized","config_groups":{"g":{"weights":{"actorder":"static"}}}}`:  "int4",
		`{"quant_method":"compressed-tensors","format":"pack-quantized","config_groups":{"g":{"weights":{"actorder":false}}}}`:     "int4",
		`{"quant_method":"compressed-tensors","format":"pack-quantized","config_groups":{"g":{"weights":{"actorder":"group"}}}}`:   "q8_0",
		`{"quant_method":"compressed-tensors","format":"pack-quantized","config_groups":{"g":{"weights":{"actorder":"dynamic"}}}}`: "q8_0",
		`{"quant_method":"compressed-tensors","format":"pack-quantized","config_groups":{"g":{"weights":{"actorder":true}}}}`:      "q8_0",
	} {
		c := maps.Clone(base)
		c["quantization_config"] = json.RawMessage(text)
		config, err := json.Marshal(c)
		check(t, err)
		got, err := model.ParseConfig("d", config, nil)
		if err != nil || got.DType.String() != want {
			t.Errorf("%s: held as %v, want %s; %v", text, got.DType, want, err)
		}
	}
}
