package batcher

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// drawTight returns sockets that together have memory for a sequence of this number of tokens, and some bytes more. A
// single socket also has memory for the hand-over.
func drawTight(r *rapid.T, tokens int) []Socket {
	sockets := drawSockets(r, 0)
	spare := block * rapid.Int64Range(0, 3).Draw(r, "spare")
	if len(sockets) == 1 {
		spare += int64(geometry.Layers)*20*block + kvcache.StateBytes(geometry, geometry.KVHeads)
	}
	for i := range sockets {
		a := &sockets[i]
		a.Budget = kvcache.PrefillBytes(geometry, a.Heads.Len(), tokens, kvcache.Full()) + spare
	}
	return sockets
}

// TestCutSequences runs sequences that fit no socket whole. The real arenas must never refuse memory, every token
// must arrive once and in order, and every request must end, also after failed steps and new placements. While
// all sequences decode cut, the ledger has exactly the bytes of the arenas.
func TestCutSequences(t *testing.T) {
	cutSequences(t)
	plain := geometry
	defer func() { geometry = plain }()
	geometry.Layers, geometry.Windows = 2, []int{40, 0}
	cutSequences(t)
	geometry = plain
	geometry = recurrent()
	cutSequences(t)
}

func cutSequences(t *testing.T) {
	const longest = 260
	cut, exact := 0, 0
	rapid.Check(t, func(r *rapid.T) {
		out := newClient(r)
		s := testState(t, func(c *Config) {
			c.MaxRunning = rapid.IntRange(1, 6).Draw(r, "max running")
			c.TokenBudget = c.MaxRunning + rapid.IntRange(1, 80).Draw(r, "spare tokens")
			c.Chunk, c.MaxFailures, c.UnservedMillis = min(40, c.TokenBudget), 1000, 1<<40
			c.NoPrefixCache = rapid.IntRange(0, 3).Draw(r, "without the prefix cache") == 0
			c.Replicas = rapid.IntRange(0, 1).Draw(r, "replicas")
		})
		s.ledger.firstLease = 8
		var at *cluster
		var flight *plan.Plan
		epoch, n := uint32(0), 0
		step := func(in Input) {
			e := s.Step(in)
			out.take(e)
			checkLedger(r, s)
			if len(e.Rejects) > 0 {
				r.Fatalf("rejected: %+v", e.Rejects)
			}
			at.keep(e.Keep)
			at.release(e.Release)
			at.evict(e.Evict)
			if e.Broken != nil {
				flight = nil
			}
			if e.Start != nil {
				flight = e.Start
			}
		}
		run := func() {
			p := flight
			flight = nil
			other := func(r *request) bool { return !r.decodesCut() && !(r.cut.now && r.holdsContext()) }
			decodes := len(s.prefix.fetches.List) == 0 && !slices.ContainsFunc(s.running, other)
			d := at.run(p, out.specs)
			for i, a := range s.ledger.sockets {
				if booked := a.reserved + a.Shared; decodes && geometry.Windows == nil && len(p.Open) == 0 && d.Used[i] != booked {
					r.Fatalf("socket %d has %d bytes, the ledger %d: %+v", i, d.Used[i], booked, s.Snapshot().Running)
				} else if decodes && geometry.Windows == nil {
					exact++
				}
			}
			step(d)
		}
		place := func() {
			epoch++
			sockets := drawTight(r, longest)
			var held []Held
			if at == nil {
				at = newCluster(r, epoch, sockets)
			} else {
				at, held = at.inherit(epoch, sockets, drawSuccessors(r, at, sockets))
			}
			flight = nil
			step(Placed{Epoch: epoch, Sockets: sockets, Held: held})
		}
		place()
		defer func() { at.close() }()
		for range rapid.IntRange(1, 80).Draw(r, "actions") {
			switch rapid.SampledFrom([]string{"submit", "done", "done", "done", "done", "fail", "place", "cancel", "reset"}).Draw(r, "action") {
			case "submit":
				n++
				spec := Spec{ID: fmt.Sprint("r", n), Sampling: greedy, Policy: kvcache.Full(), PromptLogprobs: -1, Arrival: int64(n)}
				spec.PromptLogprobs = rapid.IntRange(-1, 0).Draw(r, "prompt logprobs")
				spec.Prompt = prompt(rapid.SampledFrom([]string{spec.ID, "a text"}).Draw(r, "text"),
					rapid.SampledFrom([]int{1, 90, 170, 199, 200}).Draw(r, "prompt"))
				spec.MaxTokens = rapid.IntRange(0, 61).Draw(r, "max tokens")
				spec.NoCache = rapid.IntRange(0, 4).Draw(r, "no cache") == 0
				if rapid.IntRange(0, 2).Draw(r, "open") == 0 {
					spec.MaxTokens, spec.Open = rapid.IntRange(1, 800).Draw(r, "most tokens"), true
				}
				if !s.cfg.NoPrefixCache && rapid.IntRange(0, 2).Draw(r, "context") == 0 {
					spec.Prompt, spec.MaxTokens, spec.Context, spec.Hold, spec.PromptLogprobs, spec.Open = prompt("a text", 150), 1, 150, true, -1, false
					if rapid.Bool().Draw(r, "uses it") {
						spec.Prompt, spec.MaxTokens, spec.Hold = append(spec.Prompt, prompt(spec.ID, 30)...), 40, false
					}
				}
				out.specs[spec.ID] = &spec
				step(Submit{spec})
			case "done":
				if flight != nil {
					run()
				}
			case "fail":
				if p := flight; p != nil {
					at.run(p, out.specs)
					step(StepFailed{p.Epoch, p.Step, errStep.Error()})
				}
			case "place":
				place()
			case "cancel":
				step(Cancel{fmt.Sprint("r", rapid.IntRange(1, max(1, n)).Draw(r, "which"))})
			case "reset":
				step(ResetPrefixCache{})
			}
		}
		place()
		step(Drain{})
		for steps := 0; !s.Idle(); steps++ {
			if flight == nil || steps > 1200*(n+1) {
				r.Fatalf("stuck after %d steps: %+v", steps, s.Snapshot())
			}
			run()
		}
		for id, spec := range out.specs {
			f, over := out.finished[id]
			if !over {
				r.Fatalf("%s has not ended", id)
			}
			if fits := min(spec.MaxTokens, longest-len(spec.Prompt)+1); f.Reason == ReasonLength && f.Output < fits {
				r.Fatalf("%s ended after %d output tokens, and %d fit", id, f.Output, fits)
			}
		}
		cut += at.cut
	})
	if cut == 0 || exact == 0 && geometry.Windows == nil {
		t.Errorf("%d tokens were read by cut sequences, %d ledgers were compared with arenas", cut, exact)
	}
	t.Logf("%d tokens were read by cut sequences, %d ledgers were compared with arenas", cut, exact)
}

// TestCutOnlyIfNothingElseFits: a sequence that fits a socket is handed over to it, and a policy that reads a
// part of the tokens is refused.
func TestCutOnlyIfNothingElseFits(t *testing.T) {
	sockets := []Socket{
		{ID: "n1", Budget: 8 * block, Heads: tensor.Span{Lo: 0, Hi: 2}},
		{ID: "n2", Budget: 8 * block, Heads: tensor.Span{Lo: 2, Hi: 4}},
	}
	for _, c := range []struct {
		tokens   int
		policy   *kvcache.Policy
		cut, fit bool
	}{
		{128, kvcache.Full(), false, true},
		{129, kvcache.Full(), true, true},
		{256, kvcache.Full(), true, true},
		{257, kvcache.Full(), false, false},
		{250, paged, false, false},
		{250, squeezed, false, false},
	} {
		s := testState(t, nil)
		s.Step(Placed{Epoch: 1, Sockets: sockets})
		e := s.Step(Submit{Spec{ID: "a", Prompt: prompt("a", c.tokens-9), MaxTokens: 10, Policy: c.policy, Sampling: greedy, PromptLogprobs: -1}})
		if fit := len(e.Rejects) == 0; fit != c.fit {
			t.Errorf("%d tokens under %s: admitted %v, want %v: %+v", c.tokens, c.policy.Spec(), fit, c.fit, e.Rejects)
			continue
		}
		why := "not one under " + c.policy.Name()
		if c.policy.Selector != nil && !strings.Contains(e.Rejects[0].Message, why) {
			t.Errorf("%d tokens under %s are refused without the reason: %s", c.tokens, c.policy.Spec(), e.Rejects[0].Message)
		}
		if !c.fit {
			continue
		}
		if r := s.requests["a"]; r.cut.now != c.cut || e.Start.Open[0].Read > r.read != c.cut {
			t.Errorf("%d tokens under %s: cut %v, want %v; %+v", c.tokens, c.policy.Spec(), r.cut.now, c.cut, e.Start.Open[0])
		}
	}
}

// TestCutContexts: a context under full fits no socket. It is kept cut, and requests on it share its blocks, two
// at a time. It is preempted for a request that does not fit otherwise, read again, and also after a new epoch.
func TestCutContexts(t *testing.T) {
	s, out := testState(t, nil), newClient(t)
	sockets := []Socket{
		{ID: "n1", Budget: 12 * block, Heads: tensor.Span{Lo: 0, Hi: 2}},
		{ID: "n2", Budget: 12 * block, Heads: tensor.Span{Lo: 2, Hi: 4}},
	}
	at := newCluster(t, 1, sockets)
	defer func() { at.close() }()
	context := prompt("a text", 4*tensor.BlockSlots+10)
	var flight *plan.Plan
	run := func(in Input, until func() bool) {
		t.Helper()
		e := s.Step(in)
		if e.Start == nil {
			e.Start, flight = flight, nil
		}
		for steps := 0; ; steps++ {
			out.take(e)
			at.release(e.Release)
			at.evict(e.Evict)
			checkLedger(t, s)
			if until() {
				flight = e.Start
				return
			}
			if e.Start == nil || steps > 500 {
				t.Fatalf("stuck after %d steps: %+v", steps, s.Snapshot())
			}
			e = s.Step(at.run(e.Start, out.specs))
		}
	}
	submit := func(spec Spec) Submit {
		spec.Sampling, spec.PromptLogprobs, spec.Policy = greedy, -1, kvcache.Full()
		out.specs[spec.ID] = &spec
		return Submit{spec}
	}
	rests := func() bool {
		v := s.Snapshot()
		return !v.InFlight && len(v.Running) == 1 && v.Running[0].State == "context" && v.Running[0].Cut
	}
	over := func(ids ...string) func() bool {
		return func() bool {
			return !slices.ContainsFunc(ids, func(id string) bool { _, over := out.finished[id]; return !over })
		}
	}
	ask := func(id string) Submit {
		return submit(Spec{ID: id, Prompt: append(slices.Clone(context), prompt(id, 20)...), MaxTokens: 5, Context: len(context)})
	}
	s.Step(Placed{Epoch: 1, Sockets: sockets})
	run(submit(Spec{ID: "context", Prompt: context, MaxTokens: 1, Context: len(context), Hold: true}), rests)
	if n := s.ledger.sockets[0].free(); n != 2*block {
		t.Errorf("%d bytes are free next to a context of 5 blocks of 2 heads, want %d", n, 2*block)
	}
	warm := at.warm
	run(ask("one"), over("one"))
	if got := at.warm - warm; got != 4*tensor.BlockSlots || at.cut == 0 {
		t.Errorf("a request began with %d tokens of the context, and read %d tokens cut", got, at.cut)
	}
	if state := s.requests["context"]; state.preempted != 0 {
		t.Errorf("the context was preempted %d times", state.preempted)
	}
	run(Tick{1}, rests)
	next, held := at.inherit(2, sockets, []int{0, 1})
	at, flight = next, nil
	run(Placed{Epoch: 2, Sockets: sockets, Held: held}, rests)
	evicted := func() bool {
		v := s.Snapshot()
		if len(v.Evicted) > 0 && (v.Evicted[0].ID != "context" || v.Evicted[0].State != "evicted" || len(v.Waiting) > 0) {
			t.Errorf("an evicted context counts as waiting: %+v", v)
		}
		return len(v.Evicted) > 0
	}
	run(submit(Spec{ID: "large", Prompt: prompt("large", 350), MaxTokens: 5}), evicted)
	s.cfg.MaxWaiting = 1
	if e := s.Step(submit(Spec{ID: "third", Prompt: prompt("third", 9), MaxTokens: 5})); len(e.Rejects) > 0 {
		t.Errorf("an evicted context takes a place in the queue: %+v", e.Rejects)
	}
	s.cfg.MaxWaiting = 100
	run(Tick{2}, over("large", "third"))
	if r := s.requests["context"]; r.preempted != 1 {
		t.Errorf("the context was preempted %d times, want once", r.preempted)
	}
	run(Tick{2}, rests)
	warm = at.warm
	if run(ask("two"), over("two")); at.warm-warm != 4*tensor.BlockSlots {
		t.Errorf("a request began with %d tokens of the context that was read again", at.warm-warm)
	}
	run(Tick{3}, rests)
	run(Drain{}, s.Idle)
	if f := out.finished["context"]; f.Reason != ReasonCancelled {
		t.Errorf("%+v", f)
	}
	off := testState(t, func(c *Config) { c.NoPrefixCache = true })
	if e := off.Step(ask("off")); len(e.Rejects) != 1 || !strings.Contains(e.Rejects[0].Message, "the prefix cache, which is off") {
		t.Errorf("without the prefix cache: %+v", e.Rejects)
	}
	short := Spec{ID: "short", Prompt: prompt("short", 63), Context: 63, Hold: true, MaxTokens: 1}
	if e := testState(t, nil).Step(submit(short)); len(e.Rejects) != 1 || !strings.Contains(e.Rejects[0].Message, "blocks of 64 tokens") {
		t.Errorf("a context that is shorter than a block: %+v", e.Rejects)
	}
}

// TestCutGrowth: booking the next row of a cut sequence allocates nothing, whether or not it begins a block.
func TestCutGrowth(t *testing.T) {
	s := testState(t, nil)
	sockets := []Socket{
		{ID: "n1", Budget: 40 * block, Heads: tensor.Span{Lo: 0, Hi: 2}},
		{ID: "n2", Budget: 40 * block, Heads: tensor.Span{Lo: 2, Hi: 4}},
	}
	at, out := newCluster(t, 1, sockets), newClient(t)
	defer func() { at.close() }()
	s.Step(Placed{Epoch: 1, Sockets: sockets})
	spec := Spec{ID: "a", Prompt: prompt("a", 700), MaxTokens: 300, Policy: kvcache.Full(), Sampling: greedy, PromptLogprobs: -1,
		IgnoreEOS: true}
	out.specs["a"] = &spec
	e := s.Step(Submit{spec})
	r := s.requests["a"]
	for !r.decodesCut() {
		out.take(e)
		e = s.Step(at.run(e.Start, out.specs))
	}
	s.cuts.grow(r)
	booked := r.booked[0]
	if n := testing.AllocsPerRun(2*tensor.BlockSlots, func() {
		r.cached++
		s.cuts.grow(r)
	}); n != 0 || r.booked[0] == booked {
		t.Errorf("a row allocates %v times, and the booked bytes grow by %d", n, r.booked[0]-booked)
	}
}
