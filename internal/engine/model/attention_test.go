package model

import (
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// transformers multiplies the embedding by a root that is rounded to the type of the weights:
// 55.4256 is 55.5 in bf16.
func TestEmbeddingScale(t *testing.T) {
	c := Config{Hidden: 3072, ScaledEmbedding: true}
	for dt, want := range map[tensor.DType]float32{tensor.F32: 55.425625, tensor.F16: 55.4375, tensor.BF16: 55.5, tensor.Q8_0: 55.5} {
		if got := c.EmbeddingScale(dt); got != want {
			t.Errorf("%v: %v, want %v", dt, got, want)
		}
	}
	if got := (&Config{Hidden: 3072}).EmbeddingScale(tensor.BF16); got != 1 {
		t.Errorf("without scaling: %v", got)
	}
}
