package batcher

import (
	"fmt"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// TestUnequalHeads: under heads=ada the heads of a layer keep unequal numbers of tokens. The ledger books the
// memory of any division, on any owner.
func TestUnequalHeads(t *testing.T) {
	s := testState(t, func(c *Config) { c.TokenBudget, c.Chunk = 500, 450 })
	out := newClient(t)
	var sockets []Socket
	for i := range 2 {
		sockets = append(sockets, Socket{ID: fmt.Sprint("n", i), Budget: 1 << 20, Heads: tensor.Span{Lo: 2 * i, Hi: 2*i + 2}})
	}
	at := newCluster(t, 1, sockets)
	defer at.close()
	e := s.Step(Placed{Epoch: 1, Sockets: sockets})
	for i := range 6 {
		id := fmt.Sprint("request ", i)
		spec := Spec{ID: id, Prompt: prompt(id, 300+30*i), MaxTokens: 40, Policy: divided, Sampling: greedy, PromptLogprobs: -1, Speculate: "off"}
		out.specs[id], out.tokens[id] = &spec, 0
		if more := s.Step(Submit{spec}); more.Start != nil {
			e = more
		}
	}
	for steps := 0; !s.Idle(); steps++ {
		out.take(e)
		checkLedger(t, s)
		if e.Start == nil || steps > 2000 {
			t.Fatalf("stuck: %+v", s.Snapshot())
		}
		e = s.Step(at.run(e.Start, out.specs))
	}
	out.take(e)
	if at.unequal == 0 {
		t.Error("all heads kept as many tokens")
	}
}
