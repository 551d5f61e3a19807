package batcher

import (
	"fmt"
	"slices"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// TestSnapshotPlaces checks where prompts of a model with recurrent states start: after the last
// snapshot of a common beginning. Snapshots are at the stride, at the end of a prompt, and where a
// prompt left an earlier one.
func TestSnapshotPlaces(t *testing.T) {
	plain := geometry
	defer func() { geometry = plain }()
	geometry = recurrent()
	s := testState(t, func(c *Config) { c.TokenBudget, c.Chunk = 300, 256 })
	out := newClient(t)
	sockets := []Socket{{ID: "n", Budget: 200 * block, Heads: tensor.Span{Hi: 4}}}
	at := newCluster(t, 1, sockets)
	defer at.close()
	s.Step(Placed{Epoch: 1, Sockets: sockets})
	for i, c := range []struct {
		tokens, same int // tokens of the prompt, and its first tokens that equal the text
		want         int // found in the cache
		kept         []int
	}{
		{tokens: 400, same: 400, kept: []int{256, 384}},
		{tokens: 420, same: 200, kept: []int{192, 256, 384}},
		{tokens: 410, same: 210, want: 192, kept: []int{256, 384}},
		{tokens: 500, same: 500, want: 384, kept: []int{448}},
		{tokens: 300, same: 300, want: 256},
		{tokens: 260, same: 100, kept: []int{64, 256}},
	} {
		id := fmt.Sprint("r", i)
		spec := Spec{ID: id, Prompt: begin(prompt("a text", c.tokens), id, c.same), MaxTokens: 3,
			Sampling: greedy, PromptLogprobs: -1, Policy: kvcache.Full()}
		out.specs[id] = &spec
		var kept []int
		found := -1
		for e := s.Step(Submit{spec}); e.Start != nil; {
			for _, o := range e.Start.Open {
				found = len(o.Prefix)
			}
			for _, run := range e.Start.Chunks {
				if run.Snapshot {
					kept = append(kept, run.Start+len(run.Tokens))
				}
			}
			d := at.run(e.Start, out.specs)
			e = s.Step(d)
			out.take(e)
			checkLedger(t, s)
			at.release(e.Release)
		}
		if found != c.want || fmt.Sprint(kept) != fmt.Sprint(c.kept) {
			t.Errorf("%s: began with %d tokens and kept snapshots at %v, want %d and %v", id, found, kept, c.want, c.kept)
		}
	}
}

// TestForkWithStates: requests fork a held context, but no sequence whose states have moved on.
func TestForkWithStates(t *testing.T) {
	plain := geometry
	defer func() { geometry = plain }()
	for _, states := range []bool{false, true} {
		if geometry = plain; states {
			geometry = recurrent()
		}
		for _, hold := range []bool{true, false} {
			s := testState(t, func(c *Config) { c.TokenBudget = 300 })
			out := newClient(t)
			sockets := []Socket{{ID: "n", Budget: 200 * block, Heads: tensor.Span{Hi: 4}}}
			at := newCluster(t, 1, sockets)
			s.Step(Placed{Epoch: 1, Sockets: sockets})
			context := prompt("a text", 100)
			first := Spec{ID: "context", Prompt: context, MaxTokens: 1, Hold: true, Context: 100}
			if !hold {
				first = Spec{ID: "context", Prompt: append(context, 1), MaxTokens: 50, Context: 100}
			}
			submit := func(spec Spec) Effects {
				spec.Policy, spec.Sampling, spec.PromptLogprobs = squeezed, greedy, -1
				out.specs[spec.ID] = &spec
				return s.Step(Submit{spec})
			}
			e := submit(first)
			for i := 0; e.Start != nil && i < 40; i++ {
				p := e.Start
				if i == 6 {
					submit(Spec{ID: "r", Prompt: append(context, 2, 3), MaxTokens: 4, Context: 100})
				}
				e = s.Step(at.run(p, out.specs))
				out.take(e)
				checkLedger(t, s)
				at.release(e.Release)
				if e.Start == nil && i < 6 {
					e = submit(Spec{ID: "r", Prompt: append(context, 2, 3), MaxTokens: 4, Context: 100})
				}
			}
			if want := hold || !states; (at.forks == 1) != want || out.tokens["r"] != 4 {
				t.Errorf("states %v, held %v: %d forks, %d tokens", states, hold, at.forks, out.tokens["r"])
			}
			at.close()
		}
	}
}

// TestPlanKeepsItsBlocks: a plan does not drop blocks or snapshots that a sequence begins with in the same
// plan, even if the copy of another sequence's states needs their memory.
func TestPlanKeepsItsBlocks(t *testing.T) {
	plain := geometry
	defer func() { geometry = plain }()
	geometry = recurrent()
	warm, uncopied := 0, 0
	for budget := int64(20 * block); budget < 60*block; budget += block / 2 {
		s := testState(t, func(c *Config) { c.TokenBudget, c.Chunk = 300, 256 })
		out := newClient(t)
		sockets := []Socket{{ID: "n", Budget: budget, Heads: tensor.Span{Hi: 4}}}
		at := newCluster(t, 1, sockets)
		s.Step(Placed{Epoch: 1, Sockets: sockets})
		submit := func(id, text string, tokens, most int) Effects {
			spec := Spec{ID: id, Prompt: prompt(text, tokens), MaxTokens: most, Sampling: greedy, PromptLogprobs: -1, Policy: kvcache.Full()}
			out.specs[id] = &spec
			return s.Step(Submit{spec})
		}
		run := func(e Effects) Effects {
			p := e.Start
			for _, o := range p.Open {
				if warm += len(o.Prefix); len(o.Shared) > 0 && slices.Contains(p.DropExtras, o.Shared[len(o.Shared)-1]) {
					t.Fatalf("budget %d: step %d drops the snapshot that %s begins with", budget, p.Step, o.ID)
				}
				for _, id := range o.Shared {
					if slices.Contains(p.Evict, id) {
						t.Fatalf("budget %d: step %d evicts block %d, with which %s begins", budget, p.Step, id, o.ID)
					}
				}
			}
			for _, d := range p.Decode {
				if last := d.Start + len(d.Tokens); last%tensor.BlockSlots == 0 && !d.Snapshot {
					uncopied++ // for lack of memory
				}
			}
			e = s.Step(at.run(p, out.specs))
			out.take(e)
			checkLedger(t, s)
			at.release(e.Release)
			return e
		}
		for e := submit("first", "a text", 200, 1); e.Start != nil; {
			e = run(e)
		}
		e := submit("decodes", "another text", 8, 60)
		for e.Start != nil {
			if d := e.Start.Decode; len(d) == 1 && d[0].Start == tensor.BlockSlots-2 {
				submit("again", "a text", 200, 1) // the next plan admits it, and copies states
			}
			e = run(e)
		}
		at.close()
	}
	if warm == 0 || uncopied == 0 {
		t.Errorf("sequences began with %d tokens, and %d times states were not copied: the test needs both", warm, uncopied)
	}
}
