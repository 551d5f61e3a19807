package bench

import (
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// TestRunLoRA runs the measurement on a small shape: the adapters are loaded, and their rows decode.
func TestRunLoRA(t *testing.T) {
	l, err := RunLoRA(t.Context(), Options{Model: "fry", Weights: tensor.Q8_0, KV: tensor.BF16, Threads: 1},
		LoRAOptions{Counts: []int{1, 3}, Rank: 8, Rows: 2, Rounds: 1, StepsARound: 2, ContextOfRow: 20}, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	if len(l.Counts) != 2 || l.Counts[1].Batch != 6 || l.Counts[1].Ratio <= 0 || l.Counts[0].Bytes == 0 ||
		l.Counts[0].Bytes != l.Counts[1].Bytes {
		t.Errorf("%+v", l)
	}
}
