package quantform

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/gguf/dequant"
)

// ModelOpt's FP8_PB_WO has a scale for each block of 128 x 128, in four dimensions or in two. No setting states the
// size of a block.
func TestModelOptBlocks(t *testing.T) {
	const rows, cols = 200, 300
	s, err := Read([]byte(`{"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"}`))
	if err != nil {
		t.Fatal(err)
	}
	codes := Part{Name: "m.weight", Stored: "F8_E4M3", Shape: []int{rows, cols}, Data: make([]byte, rows*cols)}
	for i := range codes.Data {
		codes.Data[i] = byte(i % 120)
	}
	scale := func(stored string, shape ...int) Part {
		p, n := Part{Name: "m.weight_scale", Stored: stored, Shape: shape}, 1
		for _, d := range shape {
			n *= d
		}
		for i := range n {
			p.Data = binary.LittleEndian.AppendUint32(p.Data, math.Float32bits(float32(i+1)))
		}
		return p
	}
	assemble := func(scale Part) (*Matrix, error) {
		find := func(name string) (Part, bool) { return scale, name == scale.Name }
		f, base := s.Match(codes, find)
		return s.Assemble(f, base, codes, find)
	}
	for _, shape := range [][]int{{2, 1, 3, 1}, {2, 3}} {
		m, err := assemble(scale("F32", shape...))
		if err != nil {
			t.Errorf("%v: %v", shape, err)
			continue
		}
		row := make([]float32, cols)
		for r := range rows {
			m.Row(row, r, 0)
			for c, v := range row {
				if want := dequant.E4M3[codes.Data[r*cols+c]] * float32(r/128*3+c/128+1); v != want {
					t.Fatalf("%v: element %d of row %d is %g, want %g", shape, c, r, v, want)
				}
			}
		}
	}
	for _, bad := range []Part{scale("F32", 3, 2), scale("F32", 2, 1, 3), scale("F32", 1, 2, 3, 1), scale("F32", 2, 1, 3, 2),
		scale("I32", 2, 3)} {
		if _, err := assemble(bad); err == nil {
			t.Errorf("%v are accepted", &bad)
		}
	}
}
