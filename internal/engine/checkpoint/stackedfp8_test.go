package checkpoint_test

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/gguf/dequant"
	"github.com/shoal-llm/shoal/internal/engine/model/modeltest"
)

// stackedFP8 writes the Llama 4 of the tests with random stacks of experts in FP8. scales returns the shape
// of the scales of a stack (rows, columns). The result maps the name of a stack to its codes and scales.
func stackedFP8(t *testing.T, settings string, turn bool,
	scales func(rows, cols int, down bool) (m, n int)) (dir string, stacks map[string]stack) {
	t.Helper()
	const from = "../model/testdata/llama4"
	text, err := os.ReadFile(filepath.Join(from, "config.json"))
	check(t, err)
	var config map[string]json.RawMessage
	check(t, json.Unmarshal(text, &config))
	config["quantization_config"] = json.RawMessage(settings)
	text, err = json.Marshal(config)
	check(t, err)
	file, err := os.ReadFile(filepath.Join(from, "model.safetensors"))
	check(t, err)
	all, old := modeltest.Parts(file)
	header, data, r := map[string]any{}, []byte{}, rand.New(rand.NewPCG(1, 2))
	add := func(name, dtype string, shape []int, b []byte) {
		header[name] = map[string]any{"dtype": dtype, "shape": shape, "data_offsets": []int{len(data), len(data) + len(b)}}
		data = append(data, b...)
	}
	stacks = map[string]stack{}
	for name, e := range all {
		entry, ok := e.(map[string]any)
		if !ok || name == "__metadata__" {
			continue
		}
		var s []int
		for _, d := range entry["shape"].([]any) {
			s = append(s, int(d.(float64)))
		}
		at := entry["data_offsets"].([]any)
		if !strings.Contains(name, ".experts.") {
			add(name, entry["dtype"].(string), s, old[int(at[0].(float64)):int(at[1].(float64))])
			continue
		}
		if turn {
			s[1], s[2] = s[2], s[1]
		}
		codes := make([]byte, s[0]*s[1]*s[2])
		for i := range codes {
			codes[i] = byte(r.IntN(127) | r.IntN(2)<<7)
		}
		m, n := scales(s[1], s[2], strings.HasSuffix(name, "down_proj"))
		factors := make([]float32, s[0]*m*n)
		var raw []byte
		for i := range factors {
			factors[i] = 0.5 + r.Float32()
			raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(factors[i]))
		}
		add(name, "F8_E4M3", s, codes)
		ending := "_scale_inv"
		if strings.Contains(settings, "fbgemm") {
			ending = "_scale"
		}
		add(name+ending, "F32", []int{s[0], m, n}, raw)
		stacks[strings.TrimPrefix(name, "language_model.")] = stack{s, codes, factors, n}
	}
	dir = t.TempDir()
	put(t, filepath.Join(dir, "config.json"), text)
	put(t, filepath.Join(dir, "model.safetensors"), modeltest.File(header, data))
	return dir, stacks
}

type stack struct {
	shape  []int
	codes  []byte
	scales []float32
	across int // scales of a row
}

// TestStackedFP8: experts of a stack in FP8 are its slices times their scales: of blocks, of gate and up, of
// the columns of FBGEMM.
func TestStackedFP8(t *testing.T) {
	const blocks = `{"quant_method":"fp8","weight_block_size":[16,16]}`
	for name, x := range map[string]struct {
		settings string
		turn     bool
		scales   func(rows, cols int, down bool) (m, n int)
		at       func(r, c int, s stack) (m, n int) // the scale of an element
	}{
		"blocks": {blocks, true, func(r, c int, _ bool) (int, int) { return r / 16, c / 16 },
			func(r, c int, _ stack) (int, int) { return r / 16, c / 16 }},
		"halves": {`{"quant_method":"fp8"}`, true, func(_, _ int, down bool) (int, int) {
			if down {
				return 1, 1
			}
			return 2, 1
		}, func(r, _ int, s stack) (int, int) { return r * (len(s.scales) / s.shape[0]) / s.shape[1], 0 }},
		"fbgemm": {`{"quant_method":"fbgemm_fp8"}`, false, func(_, c int, down bool) (int, int) {
			if down {
				return c, 1
			}
			return 1, c
		}, func(_, c int, s stack) (int, int) { return 0, c }},
	} {
		dir, stacks := stackedFP8(t, x.settings, x.turn, x.scales)
		ck, err := checkpoint.Open(dir)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		defer ck.Close()
		c := &ck.Config
		for e := range c.MoE.Experts {
			n := c.Layer(1).Experts
			gate, up, down := n.Expert(e)
			for i, matrix := range []string{gate, up, down} {
				s, first := stacks["model.layers.1.feed_forward.experts.gate_up_proj"], i*c.MoE.FFN
				if matrix == down {
					s, first = stacks["model.layers.1.feed_forward.experts.down_proj"], 0
				}
				got, err := ck.Tensor(matrix)
				if err != nil {
					t.Fatal(err)
				}
				row := make([]float32, got.Cols())
				for r := range got.Rows() {
					got.Row(row, r, 0, len(row))
					for col, v := range row {
						y, z := first+r, col
						if !x.turn {
							y, z = z, y
						}
						m, n := x.at(y, z, s)
						code := s.codes[(e*s.shape[1]+y)*s.shape[2]+z]
						if want := dequant.E4M3[code] * s.scales[e*len(s.scales)/s.shape[0]+m*max(1, s.across)+n]; v != want {
							t.Fatalf("%s: %s[%d][%d] is %v, want %v", name, matrix, r, col, v, want)
						}
					}
				}
			}
		}
	}
	dir, _ := stackedFP8(t, blocks, true, func(r, _ int, _ bool) (int, int) { return r / 16, 1 })
	if _, err := checkpoint.Open(dir); err == nil || !strings.Contains(err.Error(), "for blocks of [16 16]") {
		t.Errorf("scales of other blocks: %v", err)
	}
}
