package batcher

import (
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
	"github.com/shoal-llm/shoal/internal/engine/lora"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// adaptedTalk is a state with requests that have adapters, under a policy whose sessions keep their caches.
type adaptedTalk struct {
	*testing.T
	s      *State
	out    *client
	at     *cluster
	memory *adapterMemory
	flight *plan.Plan
}

func newAdaptedTalk(t *testing.T, adapters int64) *adaptedTalk {
	x := &adaptedTalk{T: t, s: testState(t, func(c *Config) { c.UnservedMillis = 1000 }), out: newClient(t),
		memory: &adapterMemory{t: t, loaded: map[lora.ID]bool{}}}
	x.at = newCluster(t, 1, adaptedSocket(adapters).Sockets)
	t.Cleanup(func() { x.at.close() })
	x.step(adaptedSocket(adapters))
	return x
}

func (x *adaptedTalk) step(in Input) {
	x.Helper()
	e := x.s.Step(in)
	x.out.take(e)
	x.at.release(e.Release)
	checkLedger(x, x.s)
	if e.Start != nil {
		x.flight = e.Start
	}
	x.memory.change(x.s.epoch, e.Adapters, x.flight, x.at, x.out.specs)
	if len(e.Rejects) > 0 {
		x.Fatalf("%+v", e.Rejects)
	}
}

// run answers steps and loads until there is no more to do.
func (x *adaptedTalk) run() {
	x.Helper()
	for range 500 {
		if d, ok := x.memory.answer(x.s.epoch, true); ok {
			x.step(d)
			continue
		}
		if x.flight == nil {
			return
		}
		p := x.flight
		x.flight = nil
		x.step(x.at.run(p, x.out.specs))
	}
	x.Fatalf("no end: %+v", x.s.Snapshot())
}

// place begins an epoch in which the socket has kept its caches.
func (x *adaptedTalk) place(epoch uint32, adapters int64) {
	x.Helper()
	sockets := adaptedSocket(adapters).Sockets
	next, held := x.at.inherit(epoch, sockets, []int{0})
	x.at, x.memory.loaded, x.memory.pending = next, map[lora.ID]bool{}, nil
	x.flight = nil
	x.step(Placed{Epoch: epoch, Sockets: sockets, Held: held})
}

// submit begins the first turn of a session, or a request without one.
func (x *adaptedTalk) submit(id, session string, adapter byte) {
	x.Helper()
	policy, err := kvpolicy.Parse("streaming:sink=4,recent=60,positions=cache")
	if err != nil {
		x.Fatal(err)
	}
	x.next(Spec{ID: id, Session: session, SessionMillis: 1 << 40, Prompt: prompt(id, 50), Context: 50, MaxTokens: 20, Policy: policy,
		Sampling: greedy, PromptLogprobs: -1, IgnoreEOS: true, Adapter: Adapter{ID: lora.ID{adapter}, Bytes: 60 * int64(min(adapter, 1))}})
}

func (x *adaptedTalk) next(spec Spec) {
	x.Helper()
	x.out.specs[spec.ID] = &spec
	x.step(Submit{spec})
}

// follow continues a session after its turn with an ID.
func (x *adaptedTalk) follow(id, before string) {
	x.Helper()
	spec := *x.out.specs[before]
	spec.ID, spec.Prompt = id, append([]int32(nil), spec.Prompt...)
	for k := range spec.MaxTokens {
		spec.Prompt = append(spec.Prompt, modelToken(before, k))
	}
	spec.Prompt = append(spec.Prompt, prompt(id, 10)...)
	x.next(spec)
}

// TestIdleSessionKeepsNoAdapter: an idle session and a context have no rows, so their adapter makes room for another one
// at once. The next turn loads it again, and continues with the cache. It is the same after a new placement.
func TestIdleSessionKeepsNoAdapter(t *testing.T) {
	for _, replaced := range []bool{false, true} {
		x := newAdaptedTalk(t, 100) // one adapter
		x.submit("first", "s", 1)
		x.run()
		if replaced {
			x.place(2, 100)
			x.run()
		}
		x.submit("other", "", 2)
		x.run()
		if x.out.finished["other"].Output != 20 {
			t.Fatalf("replaced %v: the request with another adapter waits: %+v", replaced, x.s.Snapshot())
		}
		x.follow("second", "first")
		x.run()
		if f := x.out.finished["second"]; f.Output != 20 || x.at.takes != 1 {
			t.Errorf("replaced %v: %+v, %d caches were taken, want 1", replaced, f, x.at.takes)
		}
		x.step(EndSession{})
		x.run()
		if len(x.s.running) > 0 || !x.s.Idle() {
			t.Errorf("replaced %v: %+v remain", replaced, x.s.Snapshot())
		}
	}
}

// TestHopelessAdapterOfIdleSession: if the nodes cannot load an adapter any more, its requests end, once each. An idle
// session ended its turn before.
func TestHopelessAdapterOfIdleSession(t *testing.T) {
	x := newAdaptedTalk(t, 100)
	x.submit("first", "s", 1)
	x.run()
	x.place(2, 100)
	x.follow("second", "first")
	for now := int64(0); x.out.finished["second"].ID == ""; now += 100 {
		if now > 100_000 {
			t.Fatal("the second turn never ends")
		}
		if d, ok := x.memory.answer(2, false); ok {
			x.step(d) // client.take fails after a second end
			continue
		}
		x.step(Tick{now})
	}
	if f := x.out.finished["second"]; f.Code != CodeAdapter {
		t.Errorf("%+v", f)
	}
}

// TestResumedSessionAwaitsAdapter: the adapter of an idle session of an earlier epoch is loaded for a turn that is
// cancelled, and makes room for another adapter: before a plan has opened the session, and while that plan is in flight.
// The next turn continues with the cache.
func TestResumedSessionAwaitsAdapter(t *testing.T) {
	for _, opened := range []bool{false, true} {
		testResumedSession(t, opened)
	}
}

func testResumedSession(t *testing.T, opened bool) {
	x := newAdaptedTalk(t, 100)
	x.submit("first", "s", 1)
	x.run()
	x.place(2, 100)
	x.submit("plain", "", 0) // its step is in flight until the other adapter is loaded
	x.follow("second", "first")
	d, _ := x.memory.answer(2, true)
	x.step(d)
	x.step(Cancel{"second"})
	if opened {
		x.step(x.at.run(x.flight, x.out.specs))
	}
	x.submit("other", "", 2)
	if d, ok := x.memory.answer(2, true); ok == opened {
		t.Errorf("opened %v: the load of the other adapter is ordered %v", opened, ok)
	} else if ok {
		x.step(d)
	}
	x.run()
	x.follow("third", "first")
	x.run()
	if a, b := x.out.finished["other"], x.out.finished["third"]; a.Output != 20 || b.Output != 20 || x.at.takes != 1 {
		t.Errorf("opened %v: %+v and %+v, %d caches were taken, want 1", opened, a, b, x.at.takes)
	}
}

// TestAdapterTooLargeForNewPlacement: a request runs, and a new placement has a node with too little memory for its
// adapter. It waits for another placement, and ends with the reason if there is none in time.
func TestAdapterTooLargeForNewPlacement(t *testing.T) {
	for _, back := range []bool{false, true} {
		x := newAdaptedTalk(t, 100)
		x.submit("a", "", 1)
		for x.out.tokens["a"] < 5 {
			d, ok := x.memory.answer(1, true)
			if !ok {
				p := x.flight
				x.flight = nil
				x.step(x.at.run(p, x.out.specs))
				continue
			}
			x.step(d)
		}
		x.step(Tick{1})
		x.place(2, 50)
		x.run()
		x.step(Tick{2})
		if back {
			x.place(3, 100)
		}
		x.run()
		x.step(Tick{2000})
		x.run()
		f := x.out.finished["a"]
		switch {
		case back && f.Output != 20:
			t.Errorf("it does not continue with the larger node: %+v", f)
		case !back && (f.Code != CodeBudget || !strings.Contains(f.Message, "takes 60 bytes") || strings.Contains(f.Message, "max_tokens")):
			t.Errorf("%+v, want its adapter as the reason; %+v", f, x.s.Snapshot())
		}
	}
}

// TestAdapterTooLargeNamesIt: the end of a waiting request names its adapter, and no number of tokens, which would not help.
func TestAdapterTooLargeNamesIt(t *testing.T) {
	s := testState(t, func(c *Config) { c.UnservedMillis = 1000 })
	s.Step(adaptedSpec("a", 1, 60))
	low := adaptedSocket(50)
	low.Sockets[0].Heads = tensor.Span{Lo: 0, Hi: geometry.KVHeads}
	s.Step(low)
	s.Step(Tick{1})
	e := s.Step(Tick{2000})
	if len(e.Finishes) != 1 || e.Finishes[0].Code != CodeBudget || !strings.Contains(e.Finishes[0].Message, "takes 60 bytes") ||
		strings.Contains(e.Finishes[0].Message, "max_tokens") {
		t.Errorf("%+v", e.Finishes)
	}
}
