package alone

import (
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/layered"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// TestPrefillLayers: a prompt that is read layer by layer has the next token of one that is read in chunks. After some
// layers it has none.
func TestPrefillLayers(t *testing.T) {
	ck, err := checkpoint.Open("../model/testdata/llama")
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	pool := tensor.NewPool(1)
	defer pool.Close()
	const budget = 1 << 22
	a, err := New(t.Context(), Config{Checkpoint: ck, Pool: pool, Weights: tensor.F32, KV: tensor.F32, KVBudget: budget, StepTokens: 32})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	c := &ck.Config
	p := Prompt{Seq: 1, Policy: "snapkv:topk=16,obs=4,pool=3", Chunk: 32, Layers: c.Layers}
	for i := range 100 {
		p.Tokens = append(p.Tokens, uint32(5+i*i%200))
	}
	want, _, _, err := a.Prefill(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	for _, group := range []int{1, 2, c.Layers - 1} {
		p.Drop, p.Seq = []uint64{p.Seq}, p.Seq+1
		p.Shape = layered.Shape{Group: group, Rows: 64, Pass: 32, Hidden: c.Hidden, Block: c.CacheLayout(tensor.F32).BlockBytes(), Ranks: 1}
		if got, _, _, err := a.Prefill(t.Context(), p); err != nil || got != want {
			t.Errorf("%d layers at a time: token %d, want %d: %v", group, got, want, err)
		}
	}
	p.Drop, p.Seq, p.Layers = []uint64{p.Seq}, p.Seq+1, 1
	if got, _, _, err := a.Prefill(t.Context(), p); err != nil || got != 0 {
		t.Errorf("one layer: token %d: %v", got, err)
	}
	peak, err := a.PeakBytes(t.Context())
	if err != nil || peak == 0 || peak > budget {
		t.Errorf("%d bytes at the peak: %v", peak, err)
	}
}
