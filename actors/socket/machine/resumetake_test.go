package machine

import (
	"fmt"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/proto"
)

// TestTakeOfAResumedCache: the first plan of an epoch resumes an idle cache, and the next turn of its session takes it.
// The rank that holds the cache resumes and takes it, another rank opens both sequences.
func TestTakeOfAResumedCache(t *testing.T) {
	for rank, want := range []string{"[resume 1: 8 tokens take 2 from 1 reserve cache 2: 9 tokens]", ""} {
		m := NewMachine()
		m.Phase, m.Epoch = Ready, 2
		m.limits = Limits{Rank: rank, Ranks: 2, Vocab: 100, Positions: 1000, Rows: 2,
			Layout: tensor.KVLayout{Type: tensor.BF16, KDim: 8, VDim: 8}, Parse: kvpolicy.Parse}
		const spec = "streaming:sink=1,recent=4,positions=cache"
		policy, err := kvpolicy.Parse(spec)
		if err != nil {
			t.Fatal(err)
		}
		if rank == 0 {
			m.kept[1] = &Kept{Prompt: 8, Tokens: 8, Policy: policy, Layout: m.limits.Layout}
		}
		open := func(seq, fork uint64) *proto.Open {
			return &proto.Open{Seq: seq, PromptTokens: 8, Policy: spec, Resume: make([]uint32, 8), Fork: fork, Take: fork > 0,
				Sampling: &proto.Sampling{TopP: 1, RepetitionPenalty: 1, Logprobs: -1}}
		}
		w, err := m.Plan(&proto.StepRequest{Epoch: 2, Step: 1, Open: []*proto.Open{open(1, 0), open(2, 1)},
			Chunks: []*proto.Chunk{{Seq: 2, Start: 8, Tokens: []uint32{5}, Sample: true}}})
		if err != nil {
			t.Fatal(err)
		}
		if err := m.End(w, true); err != nil {
			t.Fatal(err)
		}
		if len(m.seqs) != 1 || m.seqs[2] == nil || len(m.kept) != 0 {
			t.Errorf("rank %d: %d sequences are open, %d are kept", rank, len(m.seqs), len(m.kept))
		}
		if got := fmt.Sprint(w.First); want != "" && got != want {
			t.Errorf("rank %d: %s, want %s", rank, got, want)
		}
	}
}
