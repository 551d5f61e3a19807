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
