package batcher

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// TestIdleCachesYield: caches of sessions fill the memory. A request is admitted in the next step all the
// same, and a running one grows. The oldest caches go first, and no more than needed. Their next turns read
// the tokens again.
func TestIdleCachesYield(t *testing.T) {
	endless, err := kvpolicy.Parse("streaming:sink=4,recent=60,positions=cache")
	if err != nil {
		t.Fatal(err)
	}
	s := testState(t, func(c *Config) { c.MaxRunning, c.NoPrefixCache = 4, true })
	out := newClient(t)
	one := kvcache.ResidentBytes(geometry, 50, 80, endless)
	const fit = 5
	sockets := []Socket{{ID: "a", Budget: fit*one + one/2, Heads: tensor.Span{Lo: 0, Hi: 4}}}
	at := newCluster(t, 1, sockets)
	defer at.close()
	var flight *plan.Plan
	step := func(in Input) {
		e := s.Step(in)
		out.take(e)
		at.release(e.Release)
		checkLedger(t, s)
		if e.Start != nil {
			flight = e.Start
		}
	}
	finish := func(id string) {
		t.Helper()
		for steps := 0; out.finished[id].ID == ""; steps++ {
			if flight == nil || steps > 500 {
				t.Fatalf("%s is stuck: %+v", id, s.Snapshot())
			}
			p := flight
			flight = nil
			step(at.run(p, out.specs))
		}
		for flight != nil {
			p := flight
			flight = nil
			step(at.run(p, out.specs))
		}
	}
	idle := func() (ids []string) {
		for _, r := range s.running {
			if r.idle {
				ids = append(ids, r.Session)
			}
		}
		slices.Sort(ids)
		return ids
	}
	texts := map[string][]int32{}
	turn := func(session string, added int) {
		t.Helper()
		spec := Spec{ID: fmt.Sprint(session, len(texts[session])), Session: session, SessionMillis: 1 << 40,
			Prompt:    append(slices.Clone(texts[session]), prompt(session, added)...),
			MaxTokens: 20, Policy: endless, Context: 50, Sampling: greedy, PromptLogprobs: -1, IgnoreEOS: true}
		out.specs[spec.ID] = &spec
		step(Submit{spec})
		finish(spec.ID)
		texts[session] = spec.Prompt
		for k := range 20 {
			texts[session] = append(texts[session], modelToken(spec.ID, k))
		}
	}
	step(Placed{Epoch: 1, Sockets: sockets})
	for i := range fit + 2 {
		turn(fmt.Sprint("s", i), 50)
	}
	if got := fmt.Sprint(idle()); got != "[s2 s3 s4 s5 s6]" {
		t.Fatalf("%s wait, want the newest %d", got, fit)
	}
	turn("s2", 10) // now it is the newest
	if at.takes != 1 {
		t.Fatal("its cache was not taken")
	}

	large := Spec{ID: "large", Prompt: prompt("large", 64), MaxTokens: 200, Policy: kvcache.Full(),
		Sampling: greedy, PromptLogprobs: -1, IgnoreEOS: true, Speculate: "off"}
	out.specs["large"] = &large
	step(Submit{large})
	if flight == nil || len(flight.Chunks) != 1 || len(s.waiting) > 0 {
		t.Fatalf("it waits while %v are idle: %+v", idle(), s.Snapshot())
	}
	free := s.ledger.sockets[0].free()
	if got := idle(); len(got) == 0 || slices.Contains(got, "s3") || !slices.Contains(got, "s2") || free >= one {
		t.Fatalf("%v wait, %d bytes are free", got, free)
	}
	was := len(idle())
	finish("large")
	if len(idle()) >= was || s.totals.Preempted > 0 {
		t.Fatalf("%d wait, %d before it grew; %d requests were preempted", len(idle()), was, s.totals.Preempted)
	}
	takes := at.takes
	turn("s2", 10)
	turn("s3", 10)
	if at.takes != takes+1 {
		t.Fatalf("%d caches were taken, want that of s2", at.takes-takes)
	}

	// A cache with rows in a file has little memory. It is freed after the others.
	for _, id := range []string{"s7", "s8"} {
		turn(id, 50)
	}
	last := s.running[len(s.running)-1]
	last.resides.file = inFile{blocks: 1, done: true}
	again, before := large, len(idle())
	again.ID = "again"
	out.specs["again"] = &again
	step(Submit{again})
	if got := idle(); !slices.Contains(got, last.Session) || len(got) == before {
		t.Fatalf("%v wait of %d, want %s with rows in a file", got, before, last.Session)
	}
}

// TestOrderOfVictims checks which sequences are preempted for a waiting request, and in which order.
func TestOrderOfVictims(t *testing.T) {
	s := testState(t, func(c *Config) { c.MaxRunning = 9 })
	add := func(id string, rank int64, set func(*request)) *request {
		r := &request{rank: rank, phase: decoding}
		r.ID = id
		set(r)
		s.running.insert(r)
		return r
	}
	idle := func(inFile bool) func(*request) {
		return func(r *request) { r.idle, r.resides.file.done = true, inFile }
	}
	add("stream", 1, func(*request) {})
	add("unread", 2, func(r *request) { r.unread = true })
	add("earlier job", 3, func(r *request) { r.Accepted = true })
	add("lends", 11, func(r *request) { r.Accepted, r.Prefill = true, 1 })
	add("later job", 12, func(r *request) { r.Accepted = true })
	add("context", lastRank, func(r *request) { r.Hold, r.out = true, []int32{1} })
	turn := add("turn", math.MaxInt64-5, idle(false))
	add("in memory", math.MaxInt64-4, idle(false))
	source := add("source", math.MaxInt64-3, idle(false))
	add("in a file", math.MaxInt64-2, idle(true))
	n := newcomer{s: s, r: &request{rank: 10}, source: source, turn: turn}

	var order []string
	for v := n.victim(); v != nil; v = n.victim() {
		order = append(order, v.ID)
		s.running.remove(v)
		if v == source {
			n.source = nil
		}
	}
	if want := []string{"in memory", "in a file", "context", "later job", "unread", "source"}; !slices.Equal(order, want) {
		t.Errorf("preempted %q, want %q", order, want)
	}
	if len(s.running) != 4 {
		t.Errorf("%d sequences run after the last preemption, want 4", len(s.running))
	}
}
