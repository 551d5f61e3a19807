package batcher

import (
	"fmt"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// TestTakeFreesBlocks: nothing runs, and the prefix cache fills the memory with blocks and snapshots. A cache that comes
// from the prefill group needs some of it. Sockets drop snapshots alone only with a step, and none comes before the cache
// has arrived. So the blocks are evicted with their snapshots, in the message that is sent at once.
func TestTakeFreesBlocks(t *testing.T) {
	plain := geometry
	defer func() { geometry = plain }()
	geometry = recurrent()
	evicted := 0
	for more := range int64(60) {
		s := testState(t, func(c *Config) { c.PrefillHere = 140 })
		budget := int64(geometry.Layers)*block*8 + kvcache.StateBytes(geometry, geometry.KVHeads)*3 + more*block/4
		sockets := []Socket{{ID: "a", Budget: budget, Heads: tensor.Span{Lo: 0, Hi: 4}}}
		at := newCluster(t, 1, sockets)
		out := newClient(t)
		s.Step(Placed{Epoch: 1, Sockets: sockets, Prefill: true})
		ask := func(id string, tokens int) Effects {
			out.specs[id] = &Spec{ID: id, Prompt: prompt(id, tokens), MaxTokens: 2, Policy: kvcache.Full(), Sampling: greedy,
				PromptLogprobs: -1, IgnoreEOS: true}
			return s.Step(Submit{*out.specs[id]})
		}
		for i := range 4 {
			e := ask(fmt.Sprint("local", i), 130)
			for {
				out.take(e)
				at.keep(e.Keep)
				at.release(e.Release)
				at.evict(e.Evict)
				checkLedger(t, s)
				if e.Start == nil {
					break
				}
				e = s.Step(at.run(e.Start, out.specs))
			}
		}
		e := ask("long", 150)
		if len(e.Rejects) > 0 {
			continue
		}
		e = s.Step(PrefillDone{Number: e.Prefills[0].Prefill, Epoch: 1, Seq: 1, Tokens: 150,
			Sample: &sampler.Result{Token: modelToken("long", 0)}})
		if len(e.Takes) != 1 || e.Start != nil {
			t.Fatalf("%d: %+v", more, e)
		}
		at.evict(e.Evict)
		if free, booked := budget-at.arenas[0].Used(), s.ledger.sockets[0].reserved; free < booked {
			t.Errorf("%d: %d bytes are free after the evictions, the cache needs %d", more, free, booked)
		}
		if len(e.Evict) > 0 {
			evicted++
		}
		at.close()
	}
	if evicted == 0 {
		t.Error("nothing was evicted for a cache")
	}
}
