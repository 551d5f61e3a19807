package batcher

import (
	"fmt"
	"testing"

	"github.com/shoal-llm/shoal/kvcache"
	"github.com/shoal-llm/shoal/tensor"
)

// A context that is held serves forks, whose shared bytes are booked once; it gives its memory to
// a request that would not fit beside it, is read again when that is over, and ends with the server.
func TestContextsYield(t *testing.T) {
	s := testState(t, func(c *Config) { c.TokenBudget, c.Chunk, c.NoPrefixCache = 200, 100, true })
	out := newClient(t)
	context, alone := prompt("a text", 200), kvcache.ResidentBytes(geometry, 200, 200, squeezed)
	sockets := []Socket{{ID: "n", Budget: kvcache.HandoverBytes(geometry, 4, 200, squeezed) + alone, Heads: tensor.Span{Lo: 0, Hi: 4}}}
	at := newCluster(t, 1, sockets)
	defer at.close()
	var flight *Plan // that began with what the last input waited for
	run := func(in Input, until func() bool) {
		e := s.Step(in)
		if e.Start == nil {
			e.Start, flight = flight, nil
		}
		for steps := 0; ; steps++ {
			out.take(e)
			at.release(e.Release)
			checkLedger(t, s)
			if until() {
				flight = e.Start
				return
			}
			if e.Start == nil || steps > 500 {
				t.Fatalf("stuck after %d steps: %+v", steps, s.Snapshot())
			}
			d := at.run(e.Start, out.specs)
			if booked := s.ledger.sockets[0].reserved; d.Used[0] > booked {
				t.Fatalf("%d bytes are used, %d booked", d.Used[0], booked)
			}
			e = s.Step(d)
		}
	}
	submit := func(spec Spec) Submit {
		spec.Sampling, spec.PromptLogprobs = greedy, -1
		if spec.Policy == nil {
			spec.Policy = squeezed
		}
		out.specs[spec.ID] = &spec
		return Submit{spec}
	}
	rests := func() bool {
		v := s.Snapshot()
		return !v.InFlight && len(v.Running) == 1 && v.Running[0].State == "context"
	}
	over := func(id string) func() bool {
		return func() bool { _, over := out.finished[id]; return over }
	}
	s.Step(Placed{Epoch: 1, Sockets: sockets})
	run(submit(Spec{ID: "context", Prompt: context, MaxTokens: 1, Context: 200, Hold: true}), rests)
	for i := range 3 {
		id := fmt.Sprint("fork", i)
		run(submit(Spec{ID: id, Prompt: append(context[:200:200], prompt(id, 20)...), MaxTokens: 5, Context: 200}), over(id))
		if at.forks != i+1 {
			t.Fatalf("%d forks of %d", at.forks, i+1)
		}
	}
	for _, other := range []Spec{{Salt: "another's"}, {NoCache: true}, {Policy: kvcache.Full()}} {
		other.ID, other.Prompt, other.MaxTokens = fmt.Sprint(other.Salt, other.NoCache), append(context[:200:200], prompt("x", 20)...), 2
		if other.Policy == nil {
			other.Policy, other.Context = squeezed, 200
		}
		if run(submit(other), over(other.ID)); at.forks != 3 {
			t.Fatalf("%s is a fork of what it may not share", other.ID)
		}
	}
	run(Tick{1}, rests)
	if booked := s.ledger.sockets[0].reserved; booked != alone {
		t.Errorf("%d bytes are booked for a context, want %d", booked, alone)
	}
	before := s.requests["context"].preempted
	run(submit(Spec{ID: "large", Prompt: prompt("large", 300), MaxTokens: 5}), over("large"))
	if _, gone := out.finished["context"]; gone || s.requests["context"].preempted != before+1 {
		t.Errorf("the context was preempted %d times", s.requests["context"].preempted)
	}
	run(Tick{2}, rests)
	run(Drain{}, s.Idle)
	if f := out.finished["context"]; f.Reason != ReasonCancelled {
		t.Errorf("%+v", f)
	}
	for _, bad := range []Spec{{Context: 30}, {Context: 5, Hold: true, MaxTokens: 1}, {Context: 20, Hold: true, MaxTokens: 2}, {Context: -1}} {
		bad.ID, bad.Prompt = "bad", context[:20]
		if e := s.Step(submit(bad)); len(e.Rejects) != 1 || e.Rejects[0].Code != CodeInvalid {
			t.Errorf("%+v: %+v", bad, e.Rejects)
		}
	}
}
