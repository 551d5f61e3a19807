package bench

import (
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// TestForms: every type is measured in every round, and the first is compared with itself.
func TestForms(t *testing.T) {
	f, err := RunForms(t.Context(), Options{Model: "fry", Threads: 1, KV: tensor.BF16, Context: 8, Batch: 1, Tokens: 2, Nodes: 1},
		[]tensor.DType{tensor.Q8_0, tensor.Int4}, 16, 2, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	if len(f.Forms) != 2 || f.Forms[0].DecodeRatio != 1 || f.Forms[0].PrefillRatio != 1 || f.Forms[1].Weights != "int4" {
		t.Errorf("%+v", f)
	}
	for _, x := range f.Forms {
		if !(x.Decode > 0 && x.Prefill > 0 && x.DecodeRatio > 0 && x.PrefillRatio > 0) || x.WeightBytes <= 0 {
			t.Errorf("%+v", x)
		}
	}
	if f.Forms[1].WeightBytes >= f.Forms[0].WeightBytes {
		t.Errorf("int4 has %d bytes, q8_0 %d", f.Forms[1].WeightBytes, f.Forms[0].WeightBytes)
	}
}
