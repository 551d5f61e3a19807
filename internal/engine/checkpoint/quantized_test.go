package checkpoint_test

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/model/modeltest"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// quantizedFolders are tiny Llamas in every published form (train/goldens_quantized.py).
func quantizedFolders(t testing.TB) []string {
	t.Helper()
	dirs, err := filepath.Glob("../model/testdata/quantized/*")
	if err != nil || len(dirs) < 19 {
		t.Fatalf("%d folders, %v", len(dirs), err)
	}
	return dirs
}

// Every matrix has the values of the reference, bit for bit, and any columns of it are the same.
func TestQuantizedForms(t *testing.T) {
	for _, dir := range quantizedFolders(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			c := open(t, dir)
			var golden struct{ Sums map[string]string }
			text, err := os.ReadFile(filepath.Join(dir, "goldens.json"))
			check(t, err)
			check(t, json.Unmarshal(text, &golden))
			if len(golden.Sums) != 14 || len(c.Extra()) != 0 {
				t.Fatalf("%d sums, extra tensors %v", len(golden.Sums), c.Extra())
			}
			for name, want := range golden.Sums {
				x, err := c.Tensor(name)
				check(t, err)
				h := sha256.New()
				row, part := make([]float32, x.Cols()), make([]float32, x.Cols())
				for r := range x.Rows() {
					x.Row(row, r, 0, len(row))
					for _, v := range row {
						check(t, binary.Write(h, binary.LittleEndian, math.Float32bits(v+0)))
					}
					lo, hi := r%len(row), len(row)-r%7
					if lo > hi {
						continue
					}
					x.Row(part[:hi-lo], r, lo, hi)
					for i, v := range part[:hi-lo] {
						if math.Float32bits(v) != math.Float32bits(row[lo+i]) {
							t.Fatalf("%s[%d][%d] is %g, and %g when read from column %d on", name, r, lo+i, row[lo+i], v, lo)
						}
					}
				}
				if got := hex.EncodeToString(h.Sum(nil)); got != want {
					t.Errorf("%s (%s) has other values than the reference: %v", name, x.Stored(), row[:4])
				}
			}
			if r, err := c.Verify(context.Background(), nil); err != nil || r.Err() != nil {
				t.Error(err, r.Err())
			}
		})
	}
}

// A plain draft of a model in int4 is not rounded to 4 bits.
func TestDraftAs(t *testing.T) {
	gptq, plain := open(t, "../model/testdata/quantized/gptq"), open(t, "../model/testdata/llama")
	for _, test := range []struct {
		c        *checkpoint.Checkpoint
		dt, want tensor.DType
	}{{gptq, tensor.Int4, tensor.Int4}, {gptq, tensor.MXFP4, tensor.Q8_0}, {plain, tensor.Int4, tensor.Q8_0},
		{plain, tensor.Q4_0, tensor.Q4_0}, {gptq, tensor.BF16, tensor.BF16}} {
		if got := test.c.Config.DraftAs(test.dt); got != test.want {
			t.Errorf("%s as a draft of %v is held as %v, want %v", test.c.Dir, test.dt, got, test.want)
		}
	}
}

// A node that downloads the bytes of its slices reads the same values as from the whole file.
func TestQuantizedSlices(t *testing.T) {
	for _, dir := range quantizedFolders(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			whole := open(t, dir)
			for name := range map[string]bool{"model.layers.1.mlp.down_proj.weight": true, "model.layers.0.self_attn.k_proj.weight": true} {
				want, err := whole.Tensor(name)
				check(t, err)
				for _, s := range [][4]int{{8, 16, 32, 64}, {5, 6, 0, want.Cols()}, {0, want.Rows(), 32, 64}, {30, 32, 33, 34}} {
					copied := t.TempDir()
					f := &copier{t: t, from: dir, to: copied, head: whole}
					f.prepare()
					part, err := checkpoint.OpenPartial(t.Context(), copied, whole.Hash(), f)
					check(t, err)
					check(t, part.Fetch(t.Context(), name, s[0], s[1], s[2], s[3]))
					have, err := part.Tensor(name)
					check(t, err)
					a, b := make([]float32, s[3]-s[2]), make([]float32, s[3]-s[2])
					for r := s[0]; r < s[1]; r++ {
						want.Row(a, r, s[2], s[3])
						have.Row(b, r, s[2], s[3])
						for i := range a {
							if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
								t.Fatalf("%s[%d][%d] is %g after downloading %v, want %g", name, r, s[2]+i, b[i], s, a[i])
							}
						}
					}
					check(t, part.Close())
				}
			}
		})
	}
}

// copier downloads from another folder. Bytes that were not asked for are 0xee.
type copier struct {
	t        *testing.T
	from, to string
	head     *checkpoint.Checkpoint
}

func (f *copier) prepare() {
	for _, name := range []string{"config.json", "generation_config.json"} {
		text, err := os.ReadFile(filepath.Join(f.from, name))
		check(f.t, err)
		put(f.t, filepath.Join(f.to, name), text)
	}
	path := filepath.Join(f.from, "model.safetensors")
	data, err := os.ReadFile(path)
	check(f.t, err)
	for i := f.head.Head(path, int64(len(data))); i < int64(len(data)); i++ {
		data[i] = 0xee
	}
	put(f.t, filepath.Join(f.to, "model.safetensors"), data)
}

func (f *copier) Fetch(_ context.Context, file string, spans []checkpoint.Span) error {
	src, err := os.ReadFile(filepath.Join(f.from, file))
	check(f.t, err)
	dst, err := os.OpenFile(filepath.Join(f.to, file), os.O_WRONLY, 0)
	check(f.t, err)
	defer dst.Close()
	for _, s := range spans {
		if s.From < 0 || s.To > int64(len(src)) || s.From > s.To {
			f.t.Fatalf("bytes %d to %d of %d", s.From, s.To, len(src))
		}
		if _, err := dst.WriteAt(src[s.From:s.To], s.From); err != nil {
			return err
		}
	}
	return nil
}

// The settings may be in ModelOpt's own file, under the older key, or under AutoRound's name.
func TestQuantizedSettingsElsewhere(t *testing.T) {
	for _, test := range []struct {
		folder string
		move   func(config map[string]any, dir string)
	}{
		{"fp8_tensor", func(c map[string]any, dir string) {
			delete(c, "quantization_config")
			put(t, filepath.Join(dir, "hf_quant_config.json"), []byte(`{"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}`))
		}},
		{"w8a8", func(c map[string]any, _ string) {
			c["compression_config"] = c["quantization_config"]
			delete(c, "quantization_config")
		}},
		{"gptq", func(c map[string]any, _ string) {
			c["quantization_config"] = map[string]any{"quant_method": "auto-round", "bits": 4, "packing_format": "auto_round:auto_gptq"}
		}},
		{"awq", func(c map[string]any, _ string) {
			c["quantization_config"] = map[string]any{"quant_method": "auto-round", "bits": 4, "packing_format": "auto_round:auto_awq"}
		}},
	} {
		from, dir := filepath.Join("../model/testdata/quantized", test.folder), t.TempDir()
		weights, err := os.ReadFile(filepath.Join(from, "model.safetensors"))
		check(t, err)
		put(t, filepath.Join(dir, "model.safetensors"), weights)
		var config map[string]any
		text, err := os.ReadFile(filepath.Join(from, "config.json"))
		check(t, err)
		check(t, json.Unmarshal(text, &config))
		test.move(config, dir)
		text, err = json.Marshal(config)
		check(t, err)
		put(t, filepath.Join(dir, "config.json"), text)
		a, b := open(t, from), open(t, dir)
		for _, s := range a.Config.Tensors() {
			equalTensors(t, a, b, s.Name, 0)
		}
		if _, stored, err := checkpoint.ReadConfig(dir); err != nil || stored == "bf16" {
			t.Errorf("%s: ReadConfig returned %q, %v", test.folder, stored, err)
		}
	}
}

// damagedForm copies a folder with a change of its tensors, and opens it.
func damagedForm(t *testing.T, dir string, change func(header map[string]any, data []byte)) (*checkpoint.Checkpoint, error) {
	t.Helper()
	out := t.TempDir()
	config, err := os.ReadFile(filepath.Join(dir, "config.json"))
	check(t, err)
	put(t, filepath.Join(out, "config.json"), config)
	file, err := os.ReadFile(filepath.Join(dir, "model.safetensors"))
	check(t, err)
	header, data := modeltest.Parts(file)
	change(header, data)
	put(t, filepath.Join(out, "model.safetensors"), modeltest.File(header, data))
	return checkpoint.Open(out)
}

const hostileModule = "model.layers.1.mlp.down_proj."

// A tensor that is missing, or has another type or shape, is refused with the name of its module.
func TestHostileForms(t *testing.T) {
	other := map[string]string{"F32": "I32", "F16": "I16", "BF16": "I16", "I32": "F32", "U8": "BOOL",
		"I8": "BOOL", "F8_E4M3": "F8_E5M2", "I64": "U64"}
	tried := 0
	for _, dir := range quantizedFolders(t) {
		file, err := os.ReadFile(filepath.Join(dir, "model.safetensors"))
		check(t, err)
		all, _ := modeltest.Parts(file)
		for name := range all {
			suffix, ok := strings.CutPrefix(name, hostileModule)
			if !ok || suffix == "input_scale" || suffix == "input_global_scale" || suffix == "weight_format" {
				continue // not read
			}
			for kind, change := range map[string]func(h map[string]any) bool{
				"missing": func(h map[string]any) bool { h[name+"x"] = h[name]; delete(h, name); return true },
				"type": func(h map[string]any) bool {
					e := h[name].(map[string]any)
					e["dtype"] = other[e["dtype"].(string)]
					return true
				},
				"turned": func(h map[string]any) bool {
					e := h[name].(map[string]any)
					s, _ := e["shape"].([]any)
					if len(s) != 2 || s[0] == s[1] || suffix == "SCB" || s[1] == 1.0 && suffix == "weight" {
						return false
					}
					e["shape"] = []any{s[1], s[0]}
					return true
				},
				"deep": func(h map[string]any) bool {
					e := h[name].(map[string]any)
					s, _ := e["shape"].([]any)
					if e["shape"] = append([]any{1}, s...); len(s) == 2 && s[1] != 1.0 {
						return true
					}
					return false
				},
			} {
				tried++
				var changed bool
				c, err := damagedForm(t, dir, func(h map[string]any, _ []byte) { changed = change(h) })
				if c != nil {
					check(t, c.Close())
				}
				if changed && (err == nil || !strings.Contains(err.Error(), strings.TrimSuffix(hostileModule, "."))) {
					t.Errorf("%s: %s is %s: %v", filepath.Base(dir), suffix, kind, err)
				}
			}
		}
	}
	if tried < 200 {
		t.Errorf("%d changes tried", tried)
	}
}

// Values that no writer stores: indexes and sizes are refused when the folder is opened, scales by
// Verify and when a slice is loaded.
func TestHostileFormValues(t *testing.T) {
	nan32, inf16, bf16 := []byte{0, 0, 0xc0, 0x7f}, []byte{0, 0x7c}, []byte{0x80, 0xff}
	for _, test := range []struct {
		folder, suffix string
		at             int
		bytes          []byte
		kind           error
		want           string
	}{
		{"gptq", "g_idx", 8, []byte{3, 0, 0, 0}, model.ErrOutOfRange, "column 2 is in group 3 of 3"},
		{"gptq_v2_act_order", "g_idx", 0, []byte{255, 255, 255, 255}, model.ErrOutOfRange, "group -1 of 3"},
		{"gptq_v2_act_order", "g_idx", 4, []byte{0, 0, 0, 0x80}, model.ErrOutOfRange, "column 1 is in group -2147483648"},
		{"w4a16", "weight_shape", 0, []byte{65, 0, 0, 0}, model.ErrMismatch, "is [65 96]"},
		{"w4a16", "weight_shape", 8, []byte{0, 0, 0, 0, 0, 0, 0, 1}, model.ErrMismatch, "weight_shape"},
		{"w4a16", "weight_shape", 8, []byte{0}, model.ErrMismatch, "weight_shape"},
		{"nf4", "weight.quant_state.bitsandbytes__nf4", 0, []byte("["), model.ErrFormat, "is not JSON"},
		{"nf4", "weight.nested_absmax", 0, nan32, model.ErrNotFinite, ""},
		{"fp4", "weight.absmax", 4, nan32, model.ErrNotFinite, ""},
		{"gptq", "scales", 2, inf16, model.ErrNotFinite, ""},
		{"awq", "scales", 2, inf16, model.ErrNotFinite, ""},
		{"w4a16_asym", "weight_scale", 2, bf16, model.ErrNotFinite, ""},
		{"w8a8", "weight_scale", 2, bf16, model.ErrNotFinite, ""},
		{"bnb_int8", "SCB", 0, nan32, model.ErrNotFinite, ""},
		{"fp8_tensor", "weight_scale", 0, nan32, model.ErrNotFinite, ""},
		{"fp8_tensor", "weight_scale", 0, []byte{0, 0, 0, 0}, model.ErrFormat, "holds only zeros"},
		{"fp8_block", "weight", 3, []byte{0x7f}, model.ErrNotFinite, ""},
		{"mxfp4", "weight_scale", 1, []byte{255}, model.ErrNotFinite, ""},
		{"nvfp4", "weight_scale", 1, []byte{0x7f}, model.ErrNotFinite, ""},
		{"nvfp4", "weight_global_scale", 0, []byte{0, 0, 0, 0}, model.ErrNotFinite, ""},
		{"nvfp4_modelopt", "weight_scale_2", 0, []byte{0, 0, 0x80, 0x7f}, model.ErrNotFinite, ""},
	} {
		c, err := damagedForm(t, filepath.Join("../model/testdata/quantized", test.folder), func(h map[string]any, data []byte) {
			e := h[hostileModule+test.suffix].(map[string]any)
			copy(data[int(e["data_offsets"].([]any)[0].(float64))+test.at:], test.bytes)
		})
		if err == nil {
			r, failed := c.Verify(t.Context(), nil)
			check(t, failed)
			err = r.Err()
			x, failed := c.Tensor(hostileModule + "weight")
			check(t, failed)
			row := make([]float32, x.Cols())
			for i := range x.Rows() {
				x.Row(row, i, 0, len(row))
			}
			if damage := x.Damage(); (test.kind == model.ErrNotFinite) != errors.Is(damage, model.ErrNotFinite) {
				t.Errorf("%s: %s damaged: the rows give %v", test.folder, test.suffix, damage)
			}
			check(t, c.Close())
		}
		if !errors.Is(err, test.kind) || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), hostileModule) {
			t.Errorf("%s: %s damaged: %v, want %v, %q", test.folder, test.suffix, err, test.kind, test.want)
		}
	}
}

// A method, or a setting of one, that is not implemented is refused by its name.
func TestHostileFormSettings(t *testing.T) {
	for text, want := range map[string]string{
		`{"quant_method":"aqlm"}`:               `quantized by "aqlm"`,
		`{}`:                                    "an unnamed method",
		`{"quant_method":"gptq"}`:               `bits": 0; want 2, 3, 4 or 8`,
		`{"quant_method":"gptq","bits":"four"}`: "not a whole number",
		`{"quant_method":"gptq","bits":4,"checkpoint_format":"marlin"}`:                                                   `"marlin" is not supported`,
		`{"quant_method":"awq","bits":4,"version":"gemv"}`:                                                                `version": "gemv"`,
		`{"quant_method":"bitsandbytes","bnb_4bit_quant_type":"int4"}`:                                                    "bnb_4bit_quant_type",
		`{"quant_method":"modelopt","quant_algo":"W4A8_AWQ"}`:                                                             "quant_algo",
		`{"quant_method":"auto-round","bits":4,"packing_format":"exllama"}`:                                               "packing_format",
		`{"quant_method":"compressed-tensors","format":"marlin-24"}`:                                                      "marlin-24",
		`{"quant_method":"compressed-tensors","config_groups":{"g":{"format":"x"}}}`:                                      "config_groups.g.format",
		`{"quant_method":"compressed-tensors","transform_config":{"config_groups":{"a":1}}}`:                              "transform_config",
		`{"quant_method":"compressed-tensors","sparsity_config":{"format":"sparse-24-bitmask"}}`:                          "sparsity_config",
		`{"quant_method":"compressed-tensors","config_groups":{"g":{"weights":{"block_structure":[0,1]}}}}`:               "block_structure",
		`{"quant_method":"fp8","weight_block_size":"x"}`:                                                                  "weight_block_size",
		`{"quant_method":"torchao","quant_type":"int4_weight_only"}`:                                                      "save the model with transformers 5",
		`{"quant_method":"torchao","quant_type":{"default":{"_type":"Int4WeightOnlyConfig","_data":{"group_size":128}}}}`: `"Int4WeightOnlyConfig" stores weights in the layout of one kernel`,
		`{"quant_method":"torchao","quant_type":{"default":{"_type":"FqnToConfig"}}}`:                                     "FqnToConfig",
		`{"quant_method":7}`:       "quantization_config",
		`{"quant_method":"mxfp4"}`: "gpt-oss",
	} {
		config := `{"architectures":["LlamaForCausalLM"],"hidden_size":64,"num_hidden_layers":1,"num_attention_heads":4,"intermediate_size":64,"vocab_size":100,"quantization_config":` + text + `}`
		if _, err := model.ParseConfig("d", []byte(config), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}
