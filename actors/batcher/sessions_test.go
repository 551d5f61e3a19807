package batcher

import (
	"fmt"
	"slices"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// TestSessions: each turn of a session takes over the cache of the last one, and reads only its new
// tokens, far beyond the context and in constant memory. After the loss of the owner a turn reads all
// tokens again, the first turn by prefill. A waiting cache is freed when its time is over, when memory is
// short, and when its session ends.
func TestSessions(t *testing.T) {
	endless, err := kvpolicy.Parse("streaming:sink=4,recent=60,positions=cache")
	if err != nil {
		t.Fatal(err)
	}
	const limit, first, turns = 100, 50, 12
	s := testState(t, func(c *Config) {
		c.TokenBudget, c.Chunk, c.MaxRunning, c.ContextLimit, c.Replicas = 80, 40, 4, limit, 0
	})
	out := newClient(t)
	most := kvcache.ResidentBytes(geometry, first, 10*limit, endless) * 2
	sockets := []Socket{{ID: "a", Budget: most, Heads: tensor.Span{Lo: 0, Hi: 2}}, {ID: "b", Budget: most, Heads: tensor.Span{Lo: 2, Hi: 4}}}
	at := newCluster(t, 1, sockets)
	defer func() { at.close() }()
	now := int64(0)
	var flight *plan.Plan
	rows := 0 // tokens of decode rows
	run := func(in Input, until func() bool) {
		t.Helper()
		e := s.Step(in)
		if e.Start == nil {
			e.Start, flight = flight, nil
		}
		for steps := 0; ; steps++ {
			out.take(e)
			at.release(e.Release)
			checkLedger(t, s)
			if len(e.Rejects) > 0 {
				t.Fatalf("%+v", e.Rejects)
			}
			if until() {
				flight = e.Start
				return
			}
			if e.Start == nil || steps > 3000 {
				t.Fatalf("stuck after %d steps: %+v", steps, s.Snapshot())
			}
			for _, d := range e.Start.Decode {
				rows += len(d.Tokens)
			}
			d := at.run(e.Start, out.specs)
			for i, a := range s.ledger.sockets {
				if d.Used[i] > a.reserved+a.Shared {
					t.Fatalf("%d bytes are used, %d booked", d.Used[i], a.reserved+a.Shared)
				}
			}
			e = s.Step(d)
		}
	}
	var text []int32
	turn := func(i, added int) Spec {
		spec := Spec{ID: fmt.Sprint("turn", i), Prompt: append(text[:len(text):len(text)], prompt(fmt.Sprint("new", i), added)...), MaxTokens: 20,
			Policy: endless, Context: first, Session: "s", SessionMillis: 1000, Sampling: greedy, PromptLogprobs: -1, IgnoreEOS: true}
		out.specs[spec.ID] = &spec
		return spec
	}
	ask := func(i, added int) {
		t.Helper()
		spec := turn(i, added)
		rows = 0
		run(Submit{spec}, func() bool { _, over := out.finished[spec.ID]; return over })
		if f := out.finished[spec.ID]; f.Reason != ReasonLength || f.Output != 20 {
			t.Fatalf("%+v", f)
		}
		text = spec.Prompt
		for k := range 20 {
			text = append(text, modelToken(spec.ID, k))
		}
		now++
		run(Tick{now}, func() bool { return !s.Snapshot().InFlight })
	}
	waits := func() (n int) {
		for _, r := range s.Snapshot().Running {
			if r.State == "session" {
				n++
			}
		}
		return n
	}
	s.Step(Placed{Epoch: 1, Sockets: sockets})
	ask(0, first)
	booked := int64(0)
	for i := 1; i < turns; i++ {
		ask(i, 30)
		if at.takes != i || waits() != 1 || rows > 30+2*20 {
			t.Fatalf("turn %d: %d caches were taken, %d wait, %d tokens in rows", i, at.takes, waits(), rows)
		}
		var bytes int64
		for _, a := range s.ledger.sockets {
			bytes += a.reserved
		}
		if booked = max(booked, bytes); i > 3 && bytes != booked {
			t.Fatalf("turn %d: %d bytes, %d before", i, bytes, booked)
		}
	}
	if len(text) < 4*limit {
		t.Fatalf("only %d tokens", len(text))
	}
	owner := s.running[0].owner

	// The other node is lost: the cache outlives the epoch.
	lone := []Socket{{ID: "c", Budget: most, Heads: tensor.Span{Lo: 0, Hi: 4}}}
	next, held := at.inherit(2, lone, []int{owner})
	at = next
	run(Placed{Epoch: 2, Sockets: lone, Held: held}, func() bool { return !s.Snapshot().InFlight })
	ask(turns, 10)
	if at.takes != 1 || rows > 10+2*20 {
		t.Fatalf("after the loss of another node: %d caches were taken, %d tokens in rows", at.takes, rows)
	}

	// The owner is lost: the tokens are read again.
	next, held = at.inherit(3, sockets, []int{none, none})
	at = next
	run(Placed{Epoch: 3, Sockets: sockets, Held: held}, func() bool { return !s.Snapshot().InFlight })
	if waits() != 0 {
		t.Fatal("a cache waits that is lost")
	}
	before := len(text)
	ask(turns+1, 10)
	if at.takes != 0 || rows < before-first {
		t.Fatalf("after the loss of the owner: %d caches were taken, %d tokens in rows", at.takes, rows)
	}
	ask(turns+2, 10)
	if at.takes != 1 {
		t.Fatal("the rebuilt cache was not taken")
	}

	// The time is over.
	now += 2000
	run(Tick{now}, func() bool { return waits() == 0 })
	ask(turns+3, 10)
	if at.takes != 1 || waits() != 1 {
		t.Fatalf("after its time %d caches were taken, %d wait", at.takes, waits())
	}
	// Memory is short.
	large := Spec{ID: "large", Prompt: prompt("large", limit-30), MaxTokens: 30, Policy: kvcache.Full(),
		Sampling: greedy, PromptLogprobs: -1, IgnoreEOS: true}
	for i := 0; waits() > 0; i++ {
		if i > 40 {
			t.Fatal("the waiting cache keeps its memory")
		}
		spec := large
		spec.ID, spec.Prompt = fmt.Sprint("large", i), prompt(fmt.Sprint("large", i), limit-30)
		out.specs[spec.ID] = &spec
		e := s.Step(Submit{spec})
		out.take(e)
		if e.Start != nil {
			flight = e.Start
		}
		run(Tick{now}, func() bool { return waits() == 0 || len(s.running) > 3 || len(s.waiting) == 0 })
	}
	run(Tick{now}, s.Idle)
	ask(turns+4, 10)
	// The session ends.
	run(EndSession{"another"}, func() bool { return true })
	if waits() != 1 {
		t.Fatal("another session's end freed it")
	}
	run(EndSession{"s"}, func() bool { return waits() == 0 })

	// Other requests do not take it.
	ask(turns+5, 10)
	for _, other := range []Spec{
		{Session: "t", Context: first},
		{Session: "s", Context: first + 1},
		{Session: "s", Context: first, Policy: kvcache.Streaming(4, 60)},
	} {
		other.ID, other.Prompt, other.MaxTokens, other.Sampling, other.PromptLogprobs = fmt.Sprintf("%s%d%v",
			other.Session, other.Context, other.Policy == nil), text[:90], 2, greedy, -1
		if other.Policy == nil {
			other.Policy = endless
		}
		out.specs[other.ID] = &other
		run(Submit{other}, func() bool { _, over := out.finished[other.ID]; return over })
		if at.takes != 1 {
			t.Fatalf("%s took the cache", other.ID)
		}
	}
}

// TestCachedTokensAfterALoss: a turn begins with the cache of its session, whose node is then lost, before the first
// token of the answer or after it. The tokens of the answer say that nothing of the prompt was in a cache. Before the
// loss they said that the session was.
func TestCachedTokensAfterALoss(t *testing.T) {
	const first = 200
	for _, tokens := range []int{0, 3} { // of the answer before the loss
		s := testState(t, func(c *Config) {
			c.TokenBudget, c.Chunk, c.Replicas, c.NoPrefixCache, c.DecodeSteps = 400, 200, 0, true, 1
		})
		out := newClient(t)
		sockets := []Socket{{ID: "a", Budget: 1 << 24, Heads: tensor.Span{Lo: 0, Hi: geometry.KVHeads}}}
		at := newCluster(t, 1, sockets)
		s.Step(Placed{Epoch: 1, Sockets: sockets})
		spec := func(turn int, text []int32) Spec {
			spec := Spec{ID: fmt.Sprint("turn", turn), Prompt: text, MaxTokens: 8, Policy: squeezed, Context: first, Session: "s",
				SessionMillis: 1000, Sampling: greedy, PromptLogprobs: -1, IgnoreEOS: true}
			out.specs[spec.ID] = &spec
			return spec
		}
		var cached []int
		run := func(e Effects, answered int) Effects {
			for cached = nil; ; e = s.Step(at.run(e.Start, out.specs)) {
				out.take(e)
				at.release(e.Release)
				for _, m := range e.Emits {
					cached = append(cached, m.Cached)
				}
				if e.Start == nil || len(cached) >= answered {
					return e
				}
			}
		}
		text := prompt("a text", first)
		run(s.Step(Submit{spec(0, text)}), 100)
		for k := range 8 {
			text = append(text, modelToken("turn0", k))
		}
		e := run(s.Step(Submit{spec(1, append(text, prompt("a message", 10)...))}), tokens)
		for _, n := range cached {
			if n != first+7 {
				t.Fatalf("%d tokens in the cache of the session, want %d", n, first+7)
			}
		}
		if e.Start == nil || len(cached) < tokens {
			t.Fatalf("the turn is over after %d tokens", len(cached))
		}
		before := len(cached)
		at.close()
		at = newCluster(t, 2, sockets)
		run(s.Step(Placed{Epoch: 2, Sockets: sockets}), 100)
		at.close()
		if len(cached) != 8-before {
			t.Fatalf("%d tokens after the loss, %d before", len(cached), before)
		}
		for _, n := range cached {
			if n != 0 {
				t.Errorf("after the loss, %d tokens of the prompt were in a cache", n)
			}
		}
	}
}

// TestSessionsThatShare: two sessions begin with one text. A turn without a cache begins as a fork of the other
// session's idle one. Both caches then wait for their next turns and are taken. The memory that they share is
// freed with the last of them.
func TestSessionsThatShare(t *testing.T) {
	const first = 200
	s := testState(t, func(c *Config) { c.TokenBudget, c.Chunk, c.Replicas, c.NoPrefixCache = 400, 200, 0, true })
	out := newClient(t)
	sockets := []Socket{{ID: "a", Budget: 1 << 24, Heads: tensor.Span{Lo: 0, Hi: geometry.KVHeads}}}
	at := newCluster(t, 1, sockets)
	defer func() { at.close() }()
	s.Step(Placed{Epoch: 1, Sockets: sockets})
	texts := map[string][]int32{"x": prompt("a text", first), "y": prompt("a text", first)}
	ask := func(session string, turn, forks, takes int) {
		t.Helper()
		spec := Spec{ID: fmt.Sprint(session, turn), Prompt: append(slices.Clone(texts[session]), prompt(fmt.Sprint(session, turn), 10*turn)...),
			MaxTokens: 8, Policy: squeezed, Context: first, Session: session, SessionMillis: 1000, Sampling: greedy, PromptLogprobs: -1,
			IgnoreEOS: true}
		out.specs[spec.ID] = &spec
		e := s.Step(Submit{spec})
		for steps := 0; e.Start != nil; steps++ {
			out.take(e)
			at.release(e.Release)
			checkLedger(t, s)
			d := at.run(e.Start, out.specs)
			if a := s.ledger.sockets[0]; d.Used[0] > a.reserved {
				t.Fatalf("%s: %d bytes are used, %d booked", spec.ID, d.Used[0], a.reserved)
			}
			e = s.Step(d)
		}
		out.take(e)
		at.release(e.Release)
		checkLedger(t, s)
		if at.forks != forks || at.takes != takes {
			t.Fatalf("after %s: %d forks and %d takes, want %d and %d", spec.ID, at.forks, at.takes, forks, takes)
		}
		texts[session] = spec.Prompt
		for k := range 8 {
			texts[session] = append(texts[session], modelToken(spec.ID, k))
		}
	}
	ask("x", 0, 0, 0)
	ask("y", 1, 1, 0) // it has no cache
	ask("x", 1, 1, 1)
	ask("y", 2, 1, 2)
	ask("x", 2, 1, 3)
	out.take(s.Step(EndSession{"x"}))
	out.take(s.Step(Tick{1}))
	checkLedger(t, s)
	ask("y", 3, 1, 4)
	out.take(s.Step(EndSession{}))
	out.take(s.Step(Tick{2}))
	checkLedger(t, s)
	if a := s.ledger.sockets[0]; a.reserved != 0 || a.sequences != 0 {
		t.Errorf("%d bytes of %d sequences are booked when all sessions have ended", a.reserved, a.sequences)
	}
}
