package alone

import (
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// TestFillRecurrent: filled caches of a model with recurrent states are complete and can be decoded.
func TestFillRecurrent(t *testing.T) {
	ck, err := checkpoint.Open("../model/testdata/qwen3_5")
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	pool := tensor.NewPool(1)
	defer pool.Close()
	a, err := New(t.Context(), Config{Checkpoint: ck, Pool: pool, Weights: tensor.F32, KV: tensor.F32, KVBudget: 1 << 22, StepTokens: 8})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	for seq, policy := range []string{"full", "snapkv:topk=16"} {
		if _, err := a.Fill(t.Context(), []uint64{uint64(seq + 1)}, 24, policy); err != nil {
			t.Errorf("%s: %v", policy, err)
		}
	}
}
