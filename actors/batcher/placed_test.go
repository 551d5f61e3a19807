package batcher

import (
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// A placement sets the tokens of a step and of a chunk, larger or smaller than those before it. A step always has a
// row for each running sequence.
func TestPlacedSteps(t *testing.T) {
	s := testState(t, func(c *Config) { c.TokenBudget, c.Chunk, c.MaxRunning, c.NoPrefixCache = 200, 100, 8, true })
	sockets := []Socket{{ID: "n", Budget: 1 << 40, Heads: tensor.Span{Lo: 0, Hi: 4}}}
	for _, id := range []string{"a", "b"} {
		s.Step(Submit{Spec{ID: id, Prompt: prompt(id, 900), MaxTokens: 1, Sampling: greedy, PromptLogprobs: -1, Policy: kvcache.Full()}})
	}
	for i, c := range []struct{ step, chunk, tokens, first int }{
		{800, 700, 800, 700}, {300, 300, 300, 300}, {0, 0, 300, 300}, {8, 100, 300, 100}, {9, 100, 9, 9},
	} {
		e := s.Step(Placed{Epoch: uint32(i + 1), Sockets: sockets, StepTokens: c.step, Chunk: c.chunk})
		if e.Start == nil || e.Start.Tokens() < min(c.tokens, 200) || e.Start.Tokens() > c.tokens || len(e.Start.Chunks[0].Tokens) != c.first {
			t.Fatalf("placement %d: plan %+v, want at most %d tokens, %d of the first prompt", i+1, e.Start, c.tokens, c.first)
		}
		checkLedger(t, s)
	}
}
