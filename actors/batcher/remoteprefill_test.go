package batcher

import (
	"fmt"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// TestTakesAreBounded: a socket takes a bounded number of caches at once. The others wait in the
// prefill group, and the next one follows when a cache has arrived. The tokens
// that the prefill group found in its prefix cache are cached ones.
func TestTakesAreBounded(t *testing.T) {
	const prompts = plan.MaxTaking + 6
	s := testState(t, func(c *Config) {
		c.MaxRunning, c.MaxWaiting, c.TokenBudget, c.PrefillHere = 2*prompts, 2*prompts, 4*prompts, 8
	})
	full := int64(1) << 30
	s.Step(Placed{Epoch: 1, Prefill: true, Sockets: []Socket{{ID: "a", Budget: full, Heads: tensor.Span{Lo: 0, Hi: 4}}}})
	for i := range prompts {
		s.Step(Submit{Spec{ID: fmt.Sprint(i), Prompt: prompt("p", 20), MaxTokens: 4, Policy: kvcache.Full(),
			Sampling: greedy, PromptLogprobs: -1}})
	}
	takes := 0
	for n := range prompts {
		takes += len(s.Step(PrefillDone{Number: uint64(n + 1), Epoch: 1, Seq: uint64(n + 1), Tokens: 20, Warm: 7,
			Sample: &sampler.Result{Token: 5}}).Takes)
	}
	if takes != plan.MaxTaking {
		t.Fatalf("%d caches are taken at once, want %d", takes, plan.MaxTaking)
	}
	e := s.Step(TakeDone{Number: 1})
	if takes = len(e.Takes); takes != 1 {
		t.Errorf("after a cache has arrived, %d follow, want 1", takes)
	}
	if len(e.Emits) != 1 || e.Emits[0].Cached != 7 {
		t.Errorf("first token: %+v, want 7 tokens from the prefix cache of the prefill group", e.Emits)
	}
}
