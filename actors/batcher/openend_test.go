package batcher

import (
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
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

// TestOpenEndAwaitsNodes: an open request has the tokens of an undisturbed run when a node is lost and returns, no matter
// how many tokens it had by then. If the node does not return, it ends with the tokens that it has. A request that
// was submitted without the node does not wait for it.
func TestOpenEndAwaitsNodes(t *testing.T) {
	both := []Socket{
		{ID: "n1", Budget: 8 * block, Heads: tensor.Span{Lo: 0, Hi: 2}},
		{ID: "n2", Budget: 8 * block, Heads: tensor.Span{Lo: 2, Hi: 4}},
	}
	one := []Socket{{ID: "n1", Budget: 8 * block, Heads: tensor.Span{Lo: 0, Hi: 4}}}
	for _, c := range []struct {
		name    string
		lost    int // output tokens when the node is lost; -1: before the request is submitted
		back    bool
		drain   bool
		waiting int // output tokens before the node is back
		output  int // at the end
	}{
		{"few tokens", 5, true, false, 89, 217},
		{"one before the limit of one node", 88, true, false, 89, 217},
		{"the limit of one node", 89, true, false, 89, 217},
		{"more than fit one node", 150, true, false, 150, 217},
		{"not back, few tokens", 5, false, false, 89, 89},
		{"not back, more than fit", 150, false, false, 150, 150},
		{"drained, few tokens", 5, false, true, 89, 89},
		{"drained, more than fit", 150, false, true, 150, 150},
		{"submitted later", -1, false, false, 89, 89},
	} {
		spec := Spec{ID: "a", Prompt: prompt("a", 40), MaxTokens: 900, Open: true, Policy: kvcache.Full(), Sampling: greedy,
			PromptLogprobs: -1, IgnoreEOS: true}
		s, out, at := testState(t, func(c *Config) { c.UnservedMillis = 1000 }), newClient(t), newCluster(t, 1, both)
		out.specs[spec.ID] = &spec
		s.ledger.firstLease = 16
		run := func(e Effects, tokens int) { // until the request has this number of tokens, or the end
			for range 900 {
				out.take(e)
				at.release(e.Release)
				at.evict(e.Evict)
				if checkLedger(t, s); e.Start == nil || out.tokens[spec.ID] >= tokens {
					return
				}
				e = s.Step(at.run(e.Start, out.specs))
			}
		}
		place := func(epoch uint32, sockets []Socket, from ...int) Effects {
			next, held := at.inherit(epoch, sockets, from)
			at = next
			return s.Step(Placed{Epoch: epoch, Sockets: sockets, Held: held})
		}
		s.Step(Placed{Epoch: 1, Sockets: both})
		if c.lost >= 0 {
			run(s.Step(Submit{spec}), c.lost)
		}
		e := place(2, one, 0)
		if c.lost < 0 {
			e = s.Step(Submit{spec})
		}
		run(e, 900)
		f, ended := out.finished[spec.ID]
		if n := out.tokens[spec.ID]; n != c.waiting || ended != (c.lost < 0) {
			t.Errorf("%s: %d tokens with one node, ended %v %+v; want %d", c.name, n, ended, f, c.waiting)
		}
		switch {
		case c.back:
			run(place(3, both, 0, none), 900)
		case c.drain:
			out.take(s.Step(Drain{}))
		default:
			out.take(s.Step(Tick{5}))
			out.take(s.Step(Tick{1010}))
		}
		if f = out.finished[spec.ID]; f.Reason != ReasonLength || f.Output != c.output || f.Code != "" {
			t.Errorf("%s: %+v, want %d tokens", c.name, f, c.output)
		}
		at.close()
	}
}

// TestDrainLeavesIdleSession: an idle session has ended its turn, also if the turn was open and its prompt no longer fits
// the placement. A drain does not end it again.
func TestDrainLeavesIdleSession(t *testing.T) {
	policy, err := kvpolicy.Parse("streaming:sink=4,recent=60,positions=cache")
	if err != nil {
		t.Fatal(err)
	}
	both := []Socket{
		{ID: "n1", Budget: 40 * block, Heads: tensor.Span{Lo: 0, Hi: 2}},
		{ID: "n2", Budget: 40 * block, Heads: tensor.Span{Lo: 2, Hi: 4}},
	}
	s, out, at := testState(t, nil), newClient(t), newCluster(t, 1, both)
	defer func() { at.close() }()
	s.Step(Placed{Epoch: 1, Sockets: both})
	spec := Spec{ID: "turn", Session: "s", SessionMillis: 1 << 40, Prompt: prompt("turn", 200), Context: 200, MaxTokens: 30, Open: true,
		Policy: policy, Sampling: greedy, PromptLogprobs: -1, IgnoreEOS: true}
	out.specs[spec.ID] = &spec
	e := s.Step(Submit{spec})
	for e.Start != nil {
		out.take(e)
		at.release(e.Release)
		e = s.Step(at.run(e.Start, out.specs))
	}
	out.take(e)
	one := []Socket{{ID: "n1", Budget: 12 * block, Heads: tensor.Span{Lo: 0, Hi: 4}}}
	next, held := at.inherit(2, one, []int{s.running[0].owner})
	at = next
	out.take(s.Step(Placed{Epoch: 2, Sockets: one, Held: held}))
	if len(s.running) != 1 || !s.running[0].idle || s.running[0].unfit == "" {
		t.Fatalf("%+v: want a session whose prompt does not fit", s.Snapshot())
	}
	out.take(s.Step(Drain{})) // fails after a second end
	if !s.Idle() {
		t.Errorf("%+v", s.Snapshot())
	}
}
