package batcher

import (
	"fmt"
	"testing"

	"github.com/shoal-llm/shoal/actors/batcher/prefillgroup"
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

// TestAdaptersOfBothGroups: memory holds one adapter. The prefill group reads the later of two prompts first. The decode
// group loads its adapter, although the earlier request has another one, and the prefill group reads the other prompt
// before the cache of the first has left.
func TestAdaptersOfBothGroups(t *testing.T) {
	spec := func(id string, adapter byte) Spec {
		p := adaptedSpec(id, adapter, 60).Spec
		p.Prompt = prompt(id, 50)
		return p
	}
	placed := adaptedSocket(100)
	reads := testState(t, nil)
	reads.Step(placed)
	placed.Prefill = true
	decode := testState(t, func(c *Config) { c.PrefillHere = 8 })
	decode.Step(placed)
	var prompts []Spec
	var takes []prefillgroup.Take
	step := func(in Input) { // and completes the loads
		e := decode.Step(in)
		for len(e.Adapters)+len(e.Prefills)+len(e.Takes) > 0 {
			prompts, takes = append(prompts, e.Prefills...), append(takes, e.Takes...)
			if len(e.Adapters) == 0 {
				break
			}
			e = decode.Step(AdapterDone{Epoch: 1, ID: e.Adapters[0].ID})
		}
	}
	step(Submit{spec("first", 1)})
	step(Submit{spec("second", 2)})
	first, second := prompts[0], prompts[1]

	e := reads.Step(Submit{second})
	reads.Step(Submit{first})
	e = reads.Step(AdapterDone{Epoch: 1, ID: e.Adapters[0].ID})
	for e.Start != nil && len(e.Exports) == 0 {
		e = reads.Step(StepDone{Epoch: 1, Step: e.Start.Step, Results: resultsOf(e.Start)})
	}
	if len(e.Exports) != 1 || len(e.Adapters) != 1 || e.Adapters[0].ID != first.Adapter.ID {
		t.Errorf("exports %+v, loads %+v, want the cache of the second prompt and the adapter of the first", e.Exports, e.Adapters)
	}
	step(e.Exports[0])
	if len(takes) != 1 || takes[0].Adapter != second.Adapter.ID {
		t.Errorf("takes %+v, want the cache of the second request: %+v", takes, decode.Snapshot())
	}
}
