package checkpoint

import (
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// The error of the 4-bit types on trained weights: every 32nd row of the bundled model's matrices,
// quantized, read back and compared.
func TestIQ4IsNearerThanQ4OnFry(t *testing.T) {
	ck, err := Open("../../../models/fry")
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	relative := func(dt tensor.DType) float64 {
		var wrong, all float64
		for _, s := range ck.Config.Tensors() {
			if len(s.Shape) != 2 {
				continue
			}
			m, err := ck.Tensor(s.Name)
			if err != nil {
				t.Fatal(err)
			}
			cols := s.Shape[1]
			w, err := tensor.NewWeight(dt, 1, cols)
			if err != nil {
				t.Fatal(err)
			}
			row, back := make([]float32, cols), make([]float32, cols)
			for r := 0; r < s.Shape[0]; r += 32 {
				m.Row(row, r, 0, cols)
				w.SetRow(0, row)
				w.Row(0, back)
				for i, v := range row {
					d := float64(v - back[i])
					wrong, all = wrong+d*d, all+float64(v)*float64(v)
				}
			}
			if err := w.Close(); err != nil {
				t.Error(err)
			}
		}
		return wrong / all
	}
	q8, q4, iq4 := relative(tensor.Q8_0), relative(tensor.Q4_0), relative(tensor.IQ4_NL)
	t.Logf("squared error over squared weights: q8_0 %.2e, q4_0 %.2e, iq4_nl %.2e", q8, q4, iq4)
	if !(q8 < 1e-4 && q4 < 1e-2 && iq4 < 0.85*q4) {
		t.Errorf("q8_0 %.2e, q4_0 %.2e, iq4_nl %.2e: want iq4_nl at most 0.85 of q4_0", q8, q4, iq4)
	}
}
