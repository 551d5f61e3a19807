package checkpoint_test

import (
	"encoding/binary"
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
)

// fp8 is a small checkpoint with blocks that do not divide its matrices, and the same weights in
// F32.
func fp8(t testing.TB) (quantized, plain string) {
	t.Helper()
	c, err := checkpoint.Open(write(t, modeltest.Odd(), 3))
	if err != nil {
		t.Fatal(err)
	}
	quantized, plain = filepath.Join(t.TempDir(), "q"), filepath.Join(t.TempDir(), "p")
	check(t, modeltest.FP8(c, 48, 80, quantized, plain))
	check(t, c.Close())
	return quantized, plain
}

func TestFP8(t *testing.T) {
	q, p := fp8(t)
	a, err := checkpoint.Open(q)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	b, err := checkpoint.Open(p)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if len(a.Extra()) != 0 || a.Hash() == b.Hash() {
		t.Errorf("extra tensors %v, hash %s", a.Extra(), a.Hash())
	}
	for _, spec := range a.Config.Tensors() {
		x, err := a.Tensor(spec.Name)
		check(t, err)
		y, err := b.Tensor(spec.Name)
		check(t, err)
		for r := range x.Rows() {
			for _, span := range [][2]int{{0, x.Cols()}, {x.Cols() / 3, x.Cols() - 1}, {x.Cols() - 1, x.Cols()}} {
				got, want := make([]float32, span[1]-span[0]), make([]float32, span[1]-span[0])
				x.Row(got, r, span[0], span[1])
				y.Row(want, r, span[0], span[1])
				for i := range want {
					if got[i] != want[i] {
						t.Fatalf("%s[%d][%d] is %g, want %g", spec.Name, r, span[0]+i, got[i], want[i])
					}
				}
			}
		}
	}
	report, err := checkpoint.Verify(q)
	if err != nil || report.Err() != nil {
		t.Fatal(err, report.Err())
	}
	st, err := os.Stat(filepath.Join(q, "model.safetensors"))
	check(t, err)
	if report.Bytes > st.Size() || report.Bytes < st.Size()-20<<10 {
		t.Errorf("%d bytes of weights in a file of %d", report.Bytes, st.Size())
	}
}

// Every error in a file's scales is reported with the tensor.
func TestHostileFP8(t *testing.T) {
	const name = "model.layers.1.self_attn.k_proj.weight" // (72, 120) in blocks of (48, 80)
	config := func(key string, v any) func(testing.TB, string) {
		return func(t testing.TB, dir string) {
			var c map[string]any
			path := filepath.Join(dir, "config.json")
			text, err := os.ReadFile(path)
			check(t, err)
			check(t, json.Unmarshal(text, &c))
			q, _ := c["quantization_config"].(map[string]any)
			switch {
			case key == "":
				delete(c, "quantization_config")
			case v == nil:
				delete(q, key)
			default:
				q[key] = v
			}
			text, err = json.Marshal(c)
			check(t, err)
			put(t, path, text)
		}
	}
	header := func(old, replacement string) func(testing.TB, string) {
		return func(t testing.TB, dir string) { edit(t, filepath.Join(dir, "model.safetensors"), old, replacement) }
	}
	for _, test := range []struct {
		name   string
		damage func(testing.TB, string)
		kind   error
		want   string
	}{
		{"not said", config("", nil), model.ErrUnsupported, "is F8_E4M3; supported are"},
		{"another method", config("quant_method", "hqq"), model.ErrUnsupported, `quantized by "hqq"`},
		{"another format", config("fmt", "e5m2"), model.ErrUnsupported, `quantization_config.fmt": "e5m2"`},
		{"unknown activations", config("activation_scheme", "learned"), model.ErrUnsupported, "activation_scheme"},
		{"one scale", config("weight_block_size", nil), model.ErrMismatch, "requires a single scale, or F32 [120 1]"},
		{"no block", config("weight_block_size", []int{0, 80}), model.ErrOutOfRange, "weight_block_size"},
		{"negative block", config("weight_block_size", []int{48, -1}), model.ErrOutOfRange, "weight_block_size"},
		{"huge block", config("weight_block_size", []int64{1 << 62, 80}), model.ErrOutOfRange, "weight_block_size"},
		{"three sizes", config("weight_block_size", []int{1, 2, 3}), model.ErrOutOfRange, "weight_block_size"},
		{"other block", config("weight_block_size", []int{128, 128}), model.ErrMismatch, "requires F32 [1 1] for blocks of [128 128]"},
		{"no scale", header(`"`+name+`_scale_inv"`, `"`+name+`_scale_xxx"`), model.ErrMissing, `tensor "` + name + `": is F8_E4M3 without`},
		{"turned scale", header(`"shape":[2,2]`, `"shape":[4,1]`), model.ErrMismatch, "is F32 of shape [4 1]; model.layers.0.self_attn.k_proj.weight of shape [72 120] requires F32 [2 2]"},
		{"flat scale", header(`"shape":[2,2]`, `"shape":[4]  `), model.ErrMismatch, "is F32 of shape [4]; model.layers.0.self_attn.k_proj.weight of shape [72 120] requires F32 [2 2]"},
		{"other scale", header(`"dtype":"F32","shape":[2,2]`, `"dtype":"I32","shape":[2,2]`), model.ErrMismatch, "is I32 of shape [2 2]"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir, _ := fp8(t)
			test.damage(t, dir)
			c, err := checkpoint.Open(dir)
			if c != nil {
				check(t, c.Close())
			}
			if !errors.Is(err, test.kind) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v\nwant %q (%v)", err, test.want, test.kind)
			}
		})
	}
	dir, _ := fp8(t)
	path := filepath.Join(dir, "model.safetensors")
	file, err := os.ReadFile(path)
	check(t, err)
	var tensors map[string]struct {
		Offsets []int64 `json:"data_offsets"`
	}
	n := 8 + int64(binary.LittleEndian.Uint64(file))
	check(t, json.Unmarshal(file[8:n], &tensors))
	file[n+tensors[name].Offsets[0]+5] = 0xff
	copy(file[n+tensors[name+"_scale_inv"].Offsets[0]:], []byte{0, 0, 0x80, 0x7f})
	put(t, path, file)
	report, err := checkpoint.Verify(dir)
	if err != nil || !errors.Is(report.Err(), model.ErrNotFinite) || !strings.Contains(report.Err().Error(), "2 elements") {
		t.Errorf("a NaN and an infinite scale: %v, %v", err, report.Err())
	}
}

// FuzzFP8: for any shapes in a file, opening it ends in an error or in weights that can all be
// read.
func FuzzFP8(f *testing.F) {
	f.Add(int64(3), int64(40), int64(2), int64(2), 2, 32, uint8(0x7f))
	f.Add(int64(256), int64(64), int64(2), int64(1), 128, 128, uint8(8))
	f.Add(int64(1<<40), int64(1<<40), int64(1), int64(1), 1, 1, uint8(0))
	f.Fuzz(func(t *testing.T, rows, cols, height, width int64, blockRows, blockCols int, b uint8) {
		size := func(a, b, most int64) int64 {
			if a < 0 || b < 0 || a > most || b > most || a*b > most {
				return 16
			}
			return a * b
		}
		n, m := size(rows, cols, 1<<12), size(height, width, 1<<10)
		data := make([]byte, n+4*m)
		for i := range data {
			data[i] = b + byte(i)
		}
		name := checkpoint.LlamaLayer(0).Q.Weight
		file := modeltest.File(object{
			name:                object{"dtype": "F8_E4M3", "shape": []int64{rows, cols}, "data_offsets": []int64{0, n}},
			name + "_scale_inv": object{"dtype": "F32", "shape": []int64{height, width}, "data_offsets": []int64{n, n + 4*m}},
		}, data)
		values, err := checkpoint.ReadFP8(file, name, [2]int{blockRows, blockCols})
		if err == nil && int64(len(values)) != rows*cols {
			t.Errorf("%d numbers of a matrix of %d x %d", len(values), rows, cols)
		}
		for _, v := range values {
			_ = math.Float32bits(v)
		}
	})
}
