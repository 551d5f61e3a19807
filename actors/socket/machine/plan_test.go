package machine

import (
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/proto"
)

// decoding opens 16 sequences that decode. The function that it returns decodes, checks, begins and
// ends their next step.
func decoding(t testing.TB) func() {
	m := NewMachine()
	m.Phase, m.Epoch = Ready, 1
	m.limits = Limits{Ranks: 1, Vocab: 100, Positions: 1 << 40, Rows: 64,
		Layout: tensor.KVLayout{Type: tensor.BF16, KDim: 8, VDim: 8}, Parse: kvpolicy.Parse}
	open := &proto.StepRequest{Epoch: 1, Step: 1}
	next := &proto.StepRequest{Epoch: 1, Step: 1}
	for seq := range uint64(16) {
		open.Open = append(open.Open,
			&proto.Open{Seq: seq + 1, PromptTokens: 8, Policy: "full", Sampling: &proto.Sampling{TopP: 1, RepetitionPenalty: 1, Logprobs: -1}})
		open.Chunks = append(open.Chunks, &proto.Chunk{Seq: seq + 1, Tokens: make([]uint32, 8), Prefill: true, Last: true, Sample: true})
		next.Chunks = append(next.Chunks, &proto.Chunk{Seq: seq + 1, Start: 7, Tokens: []uint32{5}, Sample: true, Accepted: 1})
	}
	step := func(r *proto.StepRequest) {
		w, err := m.Plan(r)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.End(w, true); err != nil {
			t.Fatal(err)
		}
	}
	step(open)
	for i := range next.Chunks { // no token is staged yet
		next.Chunks[i].Accepted, next.Chunks[i].Start = 0, 8
	}
	next.Step++
	step(next)
	return func() {
		next.Step++
		for _, c := range next.Chunks {
			c.Accepted, c.Start = 1, c.Start+1
		}
		step(next)
	}
}

func BenchmarkPlan(b *testing.B) {
	step := decoding(b)
	b.ReportAllocs()
	for b.Loop() {
		step()
	}
}

// TestPlanAllocations: a plan of any number of decode rows takes 4 allocations: the work, the runs,
// their tokens and the effects.
func TestPlanAllocations(t *testing.T) {
	if n := testing.AllocsPerRun(100, decoding(t)); n > 4 {
		t.Errorf("a step takes %v allocations, want at most 4", n)
	}
}
