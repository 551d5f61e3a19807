package batcher

import (
	"slices"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// TestTurnEvictsResumedSession: two idle sessions outlive an epoch. The next turn of one begins in the first step, and
// needs the memory of the other. The plan may not open a sequence that it releases: sockets refuse it, which ends the
// epoch.
func TestTurnEvictsResumedSession(t *testing.T) {
	policy, err := kvpolicy.Parse("streaming:sink=4,recent=60,positions=cache")
	if err != nil {
		t.Fatal(err)
	}
	evicted := 0
	for output := 2; output < 20; output++ {
		s := testState(t, func(c *Config) { c.NoPrefixCache = true })
		sockets := []Socket{{ID: "a", Budget: 100 * block, Heads: tensor.Span{Lo: 0, Hi: 4}}}
		out, at := newClient(t), newCluster(t, 1, sockets)
		var e Effects
		step := func(in Input) {
			e = s.Step(in)
			out.take(e)
			at.release(e.Release)
			checkLedger(t, s)
			if e.Start == nil {
				return
			}
			for _, o := range e.Start.Open {
				if slices.Contains(e.Start.Release, o.Seq) {
					t.Fatalf("%d tokens: step %d opens sequence %d of %s and releases it", output, e.Start.Step, o.Seq, o.ID)
				}
			}
			if len(e.Start.Release) > 0 && slices.ContainsFunc(e.Start.Decode, func(r plan.Run) bool { return r.Seq > 2 }) {
				evicted++
			}
		}
		turn := func(id, session string, text []int32) {
			out.specs[id] = &Spec{ID: id, Session: session, SessionMillis: 1 << 40, Prompt: text, Context: 50, MaxTokens: output,
				Policy: policy, Sampling: greedy, PromptLogprobs: -1, IgnoreEOS: true}
			step(Submit{*out.specs[id]})
			for e.Start != nil {
				step(at.run(e.Start, out.specs))
			}
		}
		step(Placed{Epoch: 1, Sockets: sockets})
		turn("x1", "x", prompt("x1", 50))
		turn("y1", "y", prompt("y1", 50))
		sockets[0].Budget = s.ledger.sockets[0].reserved
		next, held := at.inherit(2, sockets, []int{0})
		at = next
		step(Placed{Epoch: 2, Sockets: sockets, Held: held})
		text := slices.Clone(out.specs["x1"].Prompt)
		for k := range output {
			text = append(text, modelToken("x1", k))
		}
		turn("x2", "x", append(text, prompt("x2", 5)...))
		if f := out.finished["x2"]; f.Output != output {
			t.Errorf("%d tokens: %+v", output, f)
		}
		at.close()
	}
	if evicted == 0 {
		t.Error("no session was evicted")
	}
}

// TestTurnEvictsContext: in one step, a request begins as a fork of a context, and the next turn of a session needs memory.
// The turn may not evict the context: the plan would release the sequence that another begins with, and sockets refuse it.
func TestTurnEvictsContext(t *testing.T) {
	policy, err := kvpolicy.Parse("streaming:sink=4,recent=60,positions=cache")
	if err != nil {
		t.Fatal(err)
	}
	forks, short := 0, 0
	for more := range int64(40) {
		s := testState(t, func(c *Config) { c.NoPrefixCache = true })
		sockets := []Socket{{ID: "a", Budget: 400 * block, Heads: tensor.Span{Lo: 0, Hi: 4}}}
		out, at := newClient(t), newCluster(t, 1, sockets)
		var e Effects
		var flight *plan.Plan
		step := func(in Input) {
			e = s.Step(in)
			out.take(e)
			at.release(e.Release)
			checkLedger(t, s)
			if e.Start != nil {
				flight = e.Start
			}
		}
		run := func() {
			p := flight
			flight = nil
			step(at.run(p, out.specs))
		}
		submit := func(spec Spec) {
			spec.Sampling, spec.PromptLogprobs, spec.IgnoreEOS = greedy, -1, true
			out.specs[spec.ID] = &spec
			step(Submit{spec})
		}
		step(Placed{Epoch: 1, Sockets: sockets})
		submit(Spec{ID: "context", Prompt: prompt("text", 64), MaxTokens: 1, Context: 64, Hold: true, Policy: squeezed})
		turn := Spec{ID: "x1", Session: "x", SessionMillis: 1 << 40, Prompt: prompt("x1", 50), Context: 50, MaxTokens: 15, Policy: policy}
		submit(turn)
		for flight != nil {
			run()
		}
		submit(Spec{ID: "busy", Prompt: prompt("busy", 20), MaxTokens: 30, Policy: policy})
		for len(s.requests["busy"].out) < 2 {
			run()
		}
		submit(Spec{ID: "fork", Prompt: append(prompt("text", 64), 1, 2, 3), MaxTokens: 3, Context: 64, Policy: squeezed})
		text := slices.Clone(turn.Prompt)
		for k := range 15 {
			text = append(text, modelToken("x1", k))
		}
		turn.ID, turn.Prompt = "x2", append(text, 1, 2, 3)
		submit(turn)
		s.ledger.sockets[0].Budget = s.ledger.sockets[0].reserved + more*block/4
		run()
		for _, o := range flight.Open {
			if slices.Contains(flight.Release, o.Fork) {
				t.Errorf("%d: the plan opens %s with sequence %d, and releases that", more, o.ID, o.Fork)
			}
			if o.ID == "fork" && o.Fork != 0 {
				if forks++; s.requests["x2"].phase == waiting {
					short++
				}
			}
		}
		at.close()
	}
	if forks == 0 || short == 0 {
		t.Errorf("%d forks, in %d steps the turn had to wait", forks, short)
	}
}
