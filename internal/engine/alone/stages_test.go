package alone

import (
	"path/filepath"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/proto"
)

// TestExpertsRead: a step reports how many experts it read: for one token the chosen ones; for many
// tokens no more than there are, and fewer than the sum of their choices.
func TestExpertsRead(t *testing.T) {
	ck, err := checkpoint.Open(filepath.Join("../model/testdata", "mixtral"))
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	pool := tensor.NewPool(1)
	defer pool.Close()
	a, err := New(t.Context(), Config{Checkpoint: ck, Pool: pool, Weights: tensor.F32, KV: tensor.F32, KVBudget: 64 << 20, StepTokens: 64})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if _, err := a.Fill(t.Context(), []uint64{1, 2, 3}, 8, "full"); err != nil {
		t.Fatal(err)
	}
	c := &ck.Config
	layers, each := c.SparseLayers(), c.MoE.PerToken
	for _, starts := range [][]uint32{{8}, {9, 8, 8}} {
		req, seqs := &proto.StepRequest{DeadlineMillis: 60000}, len(starts)
		for s, start := range starts {
			req.Chunks = append(req.Chunks, &proto.Chunk{Seq: uint64(s + 1), Start: start, Tokens: []uint32{uint32(s * 50)}, Sample: true})
		}
		_, _, stages, err := a.Step(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		least, most := layers*each, layers*min(seqs*each, c.MoE.Experts)
		if stages.Experts < least || stages.Experts > most || seqs == 1 && stages.Experts != least {
			t.Errorf("%d sequences read %d experts, want %d to %d", seqs, stages.Experts, least, most)
		}
	}
}
