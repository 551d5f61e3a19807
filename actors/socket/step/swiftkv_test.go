package step

import (
	"testing"

	"github.com/shoal-llm/shoal/actors/socket/caches"
	"github.com/shoal-llm/shoal/actors/socket/machine"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
	"github.com/shoal-llm/shoal/internal/engine/plan"
)

// TestRowsLeave checks the rows that go through the later layers: none of a chunk that is not the
// last, and of the last chunk those that the policy observes. With prompt log-probabilities all
// rows do.
func TestRowsLeave(t *testing.T) {
	for _, c := range []struct {
		policy         string
		start, n       int
		sample, scores bool
		want           int
	}{
		{"full", 0, 100, false, false, 100},
		{"full", 100, 100, true, false, 99},
		{"full", 0, 100, false, true, 0},
		{"snapkv:topk=40,obs=8", 100, 100, true, false, 92},
		{"snapkv:topk=40,obs=8", 100, 100, false, false, 92},
		{"snapkv:topk=40,obs=128", 0, 100, false, false, 72},
		{"h2o:recent=20,topk=20", 0, 100, false, false, 0},
	} {
		p, err := kvpolicy.Parse(c.policy)
		if err != nil {
			t.Fatal(err)
		}
		e := Epoch{Epoch: &caches.Epoch{Caches: &caches.Caches{Seqs: map[uint64]*caches.Sequence{1: {Prompt: 200, Policy: p}}}}}
		e.config.SwiftKV.Layers, e.config.SwiftKV.Group = 2, 1
		run := plan.Run{Seq: 1, Prefill: true, Start: c.start, Tokens: make([]int32, c.n), Sample: c.sample, PromptLogprobs: plan.None}
		if c.scores {
			run.PromptLogprobs = 0
		}
		w := &machine.Work{Runs: []plan.Run{run}}
		if got := e.droppedRows(w, 0); got != c.want {
			t.Errorf("%+v: %d rows skip the later layers", c, got)
		}
	}
}
