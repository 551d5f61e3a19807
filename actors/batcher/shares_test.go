package batcher

import (
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// TestSharesAreBooked checks that the ledger books a policy with shares of the prompt by the prompt's length,
// and that sockets get the numbers.
func TestSharesAreBooked(t *testing.T) {
	for _, n := range []int{100, 200} {
		s := testState(t, nil)
		s.Step(Placed{Epoch: 1, Sockets: []Socket{{ID: "n", Budget: 1 << 40, Heads: tensor.Span{Lo: 0, Hi: s.cfg.Geometry.KVHeads}}}})
		of := policy(t, "snapkv:topk=10%,obs=4")
		e := s.Step(Submit{Spec{ID: "a", Prompt: prompt("a", n), MaxTokens: 5, Policy: of, Sampling: greedy, PromptLogprobs: -1}})
		want := of.For(n).Spec()
		if e.Start == nil || len(e.Start.Open) != 1 || e.Start.Open[0].Policy.Spec() != want {
			t.Fatalf("%+v, want %s", e.Start, want)
		}
		if r := s.requests["a"]; r.booked[0] < kvcache.HandoverBytes(s.cfg.Geometry, s.cfg.Geometry.KVHeads, n, of.For(n)) {
			t.Errorf("%d bytes are booked", r.booked[0])
		}
	}
}
