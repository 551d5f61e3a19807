package batcher

import (
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// TestOpenEnd: an open request generates as many tokens as fit. It begins whole, on either socket, and is cut once it
// fits none. A request that is not open is refused. Another fits whole to its end, and a prompt that fits no socket is
// cut at once. A job that had all tokens that fit ends when it is submitted again.
func TestOpenEnd(t *testing.T) {
	sockets := []Socket{
		{ID: "n1", Budget: 8 * block, Heads: tensor.Span{Lo: 0, Hi: 2}},
		{ID: "n2", Budget: 8 * block, Heads: tensor.Span{Lo: 2, Hi: 4}},
	}
	early := false // requests come before the placement
	run := func(spec Spec) (f Finish, cut, whole bool) {
		s, out, at := testState(t, nil), newClient(t), newCluster(t, 1, sockets)
		defer func() { at.close() }()
		s.ledger.firstLease = 16
		first, second := Input(Placed{Epoch: 1, Sockets: sockets}), Input(Submit{spec})
		if early {
			first, second = second, first
		}
		out.specs[spec.ID], out.tokens[spec.ID] = &spec, len(spec.Emitted)
		s.Step(first)
		e := s.Step(second)
		for steps := 0; ; steps++ {
			out.take(e)
			at.release(e.Release)
			at.evict(e.Evict)
			checkLedger(t, s)
			if e.Start == nil || steps > 900 {
				break
			}
			for _, r := range s.running {
				cut, whole = cut || r.cut.now, whole || !r.cut.now
			}
			e = s.Step(at.run(e.Start, out.specs))
		}
		if len(e.Rejects) > 0 {
			return Finish{Code: e.Rejects[0].Code}, false, false
		}
		return out.finished[spec.ID], cut, whole
	}
	spec := func(tokens, most int, open bool) Spec {
		return Spec{ID: "a", Prompt: prompt("a", tokens), MaxTokens: most, Open: open, Policy: kvcache.Full(), Sampling: greedy,
			PromptLogprobs: -1, IgnoreEOS: true}
	}
	for _, c := range []struct {
		name       string
		spec       Spec
		output     int
		cut, whole bool
	}{
		{"grows out of a socket", spec(40, 900, true), 217, true, true},
		{"fits a socket", spec(40, 80, true), 80, false, true},
		{"a long prompt", spec(200, 700, true), 57, true, false},
		{"one token more than fits", spec(256, 700, true), 1, true, false},
	} {
		if f, cut, whole := run(c.spec); f.Reason != ReasonLength || f.Output != c.output || cut != c.cut || whole != c.whole {
			t.Errorf("%s: %+v, cut %v, whole %v; want %d tokens, %v, %v", c.name, f, cut, whole, c.output, c.cut, c.whole)
		}
	}
	least := *greedy
	least.MinTokens = 300
	needs := spec(40, 900, true)
	needs.Sampling = &least
	for name, spec := range map[string]Spec{"not open": spec(40, 900, false), "no room": spec(257, 700, true), "min_tokens": needs} {
		if f, _, _ := run(spec); f.Code != CodeBudget {
			t.Errorf("%s: %+v", name, f)
		}
	}
	again := spec(40, 900, true)
	again.Accepted = true
	for i := range 217 {
		again.Emitted = append(again.Emitted, modelToken("a", i))
	}
	for _, early = range []bool{false, true} {
		if f, _, _ := run(again); f.Reason != ReasonLength || f.Output != 217 {
			t.Errorf("a job with all its tokens, before the placement %v: %+v", early, f)
		}
	}
}
