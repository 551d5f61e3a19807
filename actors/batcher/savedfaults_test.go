package batcher

import (
	"slices"
	"testing"

	"github.com/shoal-llm/shoal/actors/batcher/prefillgroup"
	"github.com/shoal-llm/shoal/actors/batcher/saved"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// idleNode is a socket with memory for caches + 1/2 idle caches of the sessions of idleRig.
func idleNode(t *testing.T, id string, caches int64, lo, hi int) Socket {
	t.Helper()
	endless, err := kvpolicy.Parse("streaming:sink=4,recent=60,positions=cache")
	if err != nil {
		t.Fatal(err)
	}
	one := kvcache.ResidentBytes(geometry, 50, 80, endless)
	return Socket{ID: id, Budget: caches*one + one/2, Heads: tensor.Span{Lo: lo, Hi: hi}, Scratch: 1 << 30}
}

// TestHungWritesDelayOnce: the disk hangs, and requests need the memory of several idle caches. The first one waits
// roomMillis for all writes together, the second one not at all, also in the next epoch. When the disk works again, caches
// go to files before their memory is used.
func TestHungWritesDelayOnce(t *testing.T) {
	for i := range 4 {
		grows, epoch := i%2 > 0, i/2 > 0
		sockets := []Socket{idleNode(t, "a", 6, 0, 4)}
		g := newIdleRig(t, sockets)
		g.files.hangs = true
		for _, session := range []string{"p", "q", "r", "s", "t", "u"} {
			g.turn(session, 50)
		}
		idle := func() (n int) {
			for _, r := range g.s.running {
				if r.idle {
					n++
				}
			}
			return n
		}
		large := func(id string) (millis int64, freed int) {
			t.Helper()
			before, began := idle(), g.now
			spec := Spec{ID: id, Prompt: prompt(id, 250), MaxTokens: 2, Policy: kvcache.Full(), Sampling: greedy,
				PromptLogprobs: -1, IgnoreEOS: true}
			if grows { // its memory grows with each row
				spec.Prompt, spec.MaxTokens = prompt(id, 30), 220
			}
			g.out.specs[spec.ID] = &spec
			g.step(Submit{spec})
			for steps := 0; g.out.finished[spec.ID].ID == ""; steps++ {
				if steps > 5000 {
					t.Fatalf("%s is stuck: %+v", spec.ID, g.s.Snapshot())
				}
				g.advance()
			}
			return g.now - began, before - idle()
		}
		if millis, freed := large("x"); millis < roomMillis || millis > roomMillis+500 || freed < 2 {
			t.Errorf("grows %v: a request waits %d ms for %d caches, want %d ms in all", grows, millis, freed, roomMillis)
		}
		if epoch {
			g.place(sockets, 0)
		}
		g.turn("v", 50)
		g.turn("w", 50)
		g.turn("x", 50)
		if millis, freed := large("y"); millis > 500 || freed < 2 {
			t.Errorf("grows %v: after that a request waits %d ms for %d caches", grows, millis, freed)
		}

		g.files.hangs = false
		g.rest()
		if g.turn("y", 50); g.s.saves.disk(0).Paused(g.s.now) {
			t.Error("a disk that works is not waited for")
		}
	}
}

// TestHungDiskDelaysItsNodeOnly: orders to a disk that hangs do not keep other sockets from writing.
func TestHungDiskDelaysItsNodeOnly(t *testing.T) {
	s := testState(t, nil)
	s.Step(Placed{Epoch: 1, Sockets: []Socket{idleNode(t, "a", 9, 0, 2), idleNode(t, "b", 9, 2, 4)}})
	var last *request
	for i := range maxWrites + 2 {
		r := &request{Spec: Spec{Session: string('a' + rune(i)), Policy: kvcache.Full()}, owner: 0, until: 1 << 40}
		if i > maxWrites {
			r.owner = 1
		}
		s.saves.write(r)
		last = r
	}
	if n := s.saves.orders(0); n != maxWrites || last.write.Number == 0 {
		t.Errorf("%d orders for a socket, want %d; the other one has order %d", n, maxWrites, last.write.Number)
	}
}

// TestTooLargeForTheDisk: a cache for which the disk has no room is not ordered again until there is room, or the cache
// is another one. Memory does not wait for it.
func TestTooLargeForTheDisk(t *testing.T) {
	g := newIdleRig(t, []Socket{idleNode(t, "a", 1, 0, 4)})
	disk := &g.s.ledger.sockets[0]
	g.files.lacks = map[string]int64{"a": disk.Scratch + 1}
	minute := func() {
		for range 600 {
			g.advance()
		}
	}
	g.turn("s", 50)
	minute()
	if g.files.writes != 1 {
		t.Errorf("%d orders for a cache that never fits", g.files.writes)
	}
	began := g.now
	if g.turn("t", 50); g.now-began > 300 {
		t.Errorf("memory waits %d ms for a cache that does not fit", g.now-began)
	}
	minute()
	if g.files.writes != 2 {
		t.Errorf("%d orders for two caches that do not fit", g.files.writes)
	}

	size := disk.Scratch
	g.files.lacks["a"] = size
	disk.Scratch-- // as if a running sequence had rows in a file
	g.turn("u", 50)
	minute()
	if g.files.writes != 3 {
		t.Errorf("%d orders for three caches that do not fit", g.files.writes)
	}
	disk.Scratch, g.files.lacks = size, nil
	minute()
	if g.files.writes != 4 || g.s.totals.Saved != 1 {
		t.Errorf("%d orders, %d caches in files, after the disk has room", g.files.writes, g.s.totals.Saved)
	}
}

// TestRetriesWithdraw: the pause before the next attempt of a write grows with each failure in a row.
func TestRetriesWithdraw(t *testing.T) {
	g := newIdleRig(t, []Socket{idleNode(t, "a", 1, 0, 4)})
	g.turn("s", 50)
	g.broken = true
	for g.now < 1000_000 {
		g.advance()
	}
	if g.files.writes < 4 || g.files.writes > 8 {
		t.Errorf("%d orders in 1000 s for a disk that fails", g.files.writes)
	}
	g.broken = false
	for g.now < 2000_000 {
		g.advance()
	}
	if g.s.totals.Saved != 1 {
		t.Errorf("%d caches are in files", g.s.totals.Saved)
	}
}

// TestOneFileOfASession: when the newest cache of a session is in a file, the older files of other nodes are removed: also if
// the order fails at first, and from a node that was away.
func TestOneFileOfASession(t *testing.T) {
	a, b := idleNode(t, "a", 1, 0, 2), idleNode(t, "b", 1, 2, 4)
	for _, away := range []bool{false, true} {
		sockets := []Socket{a, b}
		if away {
			sockets = []Socket{idleNode(t, "b", 1, 0, 4)}
		}
		g := newIdleRig(t, sockets)
		key := saved.NewKey("a model", "s")
		for _, id := range []string{"a", "b"} { // as if both had been owners
			g.files.files[id] = map[saved.Key]idleFile{key: {}}
		}
		g.files.deaf = true
		g.turn("s", 50)
		g.rest()
		if away {
			g.place([]Socket{a, b}, none, 0)
			g.rest()
		}
		if n := len(g.files.files["a"]) + len(g.files.files["b"]); n != 2 {
			t.Errorf("away %v: %d files are left although the removal failed", away, n)
		}
		for g.files.deaf = false; g.now < 200_000; {
			g.advance()
		}
		if n := len(g.files.files["a"]) + len(g.files.files["b"]); n != 1 {
			t.Errorf("away %v: a session has %d files", away, n)
		}
		if g.turn("s", 10); g.s.totals.Recomputed > 0 {
			t.Errorf("away %v: %d tokens were read again", away, g.s.totals.Recomputed)
		}
	}
}

// TestEndedWhileAway: a session ends while a node with a file of it is absent. The node removes the file after
// its return, also after a failed attempt. A newer session of the name keeps its file.
func TestEndedWhileAway(t *testing.T) {
	b := idleNode(t, "b", 1, 0, 4)
	both := []Socket{idleNode(t, "a", 1, 0, 2), idleNode(t, "b", 1, 2, 4)}
	for _, again := range []bool{false, true} {
		g := newIdleRig(t, []Socket{b})
		key := saved.NewKey("a model", "s")
		g.files.files["a"] = map[saved.Key]idleFile{key: {}}
		g.step(EndSession{"s"})
		g.rest()
		if again {
			g.turn("s", 50)
			g.rest()
			if _, ok := g.files.files["b"][key]; !ok {
				t.Fatal("a new session of the name has no file")
			}
		}
		drops := g.files.drops
		g.files.deaf = true
		g.place(both, none, none)
		g.rest()
		g.files.deaf = false
		g.place([]Socket{b}, none)
		g.rest()
		g.place(both, none, none)
		g.rest()
		_, old := g.files.files["a"][key]
		if _, ok := g.files.files["b"][key]; old || ok != again {
			t.Errorf("begun again %v: the file on a node that was away stays: %v; the newer session has a file: %v", again, old, ok)
		}
		if n := g.files.drops - drops; n != 2 {
			t.Errorf("begun again %v: %d orders to remove files", again, n)
		}
	}
}

// TestLateWriteOfEndedSession: the write of a session's cache ends after the session. Its file is removed. If a
// newer session of the name has begun, the file stays.
func TestLateWriteOfEndedSession(t *testing.T) {
	for _, again := range []bool{false, true} {
		g := newIdleRig(t, []Socket{idleNode(t, "a", 4, 0, 2), idleNode(t, "b", 4, 2, 4)})
		key := saved.NewKey("a model", "s")
		g.files.hangs = true
		g.turn("s", 50)
		g.rest()
		at := slices.IndexFunc(g.files.pending, func(o saved.Order) bool { return o.Do == saved.Write })
		if at < 0 {
			t.Fatal("no write")
		}
		late := g.files.pending[at]
		g.files.pending = slices.Delete(g.files.pending, at, at+1)
		g.step(EndSession{"s"})
		g.files.hangs = false
		g.rest()
		if again {
			g.texts["s"] = prompt("other", 7)
			g.turn("s", 50)
			g.rest()
		} else {
			g.files.files["a"] = map[saved.Key]idleFile{key: {}}
		}
		g.step(saved.Done{Number: late.Number})
		g.rest()
		if n := len(g.files.files["a"]) + len(g.files.files["b"]); again && n != 1 || !again && n != 0 {
			t.Errorf("begun again %v: the session has %d files", again, n)
		}
	}
}

// TestRemovalIsTriedAgain: a node fails to remove the file of a session that is over, and tries again after a minute. If a
// newer session of the name has a file on this node by then, it stays.
func TestRemovalIsTriedAgain(t *testing.T) {
	for _, again := range []bool{false, true} {
		g := newIdleRig(t, []Socket{idleNode(t, "b", 4, 0, 4)})
		key := saved.NewKey("a model", "s")
		g.turn("s", 50)
		g.rest()
		g.files.deaf = true
		g.step(EndSession{"s"})
		g.rest()
		if again {
			g.turn("s", 50)
			g.rest()
		}
		g.files.deaf = false
		if _, ok := g.files.files["b"][key]; !ok {
			t.Fatal("the session has no file")
		}
		for end := g.now + 70_000; g.now < end; {
			g.advance()
		}
		if _, ok := g.files.files["b"][key]; ok != again {
			t.Errorf("begun again %v: after a minute the file is there: %v", again, ok)
		}
	}
}

// TestTwoLoadsFit: two turns load their caches at the same time. Each has its memory booked before the rows arrive, so
// the second waits if there is none.
func TestTwoLoadsFit(t *testing.T) {
	for _, caches := range []int64{1, 2} {
		g := newIdleRig(t, []Socket{idleNode(t, "a", caches, 0, 4)})
		g.turn("s", 50)
		g.rest()
		g.turn("t", 50)
		g.rest()
		g.place([]Socket{idleNode(t, "a", caches, 0, 4)}, none)
		var specs []Spec
		for _, session := range []string{"s", "t"} {
			spec := Spec{ID: session + " again", Session: session, SessionMillis: 1 << 40, Prompt: append(g.texts[session], 7), MaxTokens: 3,
				Policy: g.policy, Context: 50, Sampling: greedy, PromptLogprobs: -1, IgnoreEOS: true}
			g.out.specs[spec.ID] = &spec
			specs = append(specs, spec)
			g.step(Submit{spec})
		}
		most := 0
		for steps := 0; len(g.out.finished) < 4; steps++ {
			if steps > 1000 {
				t.Fatalf("stuck: %+v", g.s.Snapshot())
			}
			coming := int64(0)
			for _, r := range g.s.running {
				if r.saved.Phase == saved.Loading {
					coming += r.booked[0]
				}
			}
			if most = max(most, g.s.coming()); coming > g.s.ledger.sockets[0].Budget {
				t.Fatalf("%d bytes of caches are on their way, the budget is %d", coming, g.s.ledger.sockets[0].Budget)
			}
			g.advance()
		}
		if most != int(caches) || g.s.totals.Loaded != 2 {
			t.Errorf("room for %d caches: %d loads at once, %d of %d in all", caches, most, g.s.totals.Loaded, len(specs))
		}
	}
}

// TestLoadsAreBounded: caches from files and caches from the prefill group count together. A socket refuses more
// than MaxTaking.
func TestLoadsAreBounded(t *testing.T) {
	s := testState(t, nil)
	r := func(phase saved.Phase, remote prefillgroup.Phase) *request {
		x := &request{}
		x.saved.Phase, x.remote.Phase = phase, remote
		return x
	}
	for range plan.MaxTaking / 2 {
		s.running = append(s.running, r(saved.Loading, prefillgroup.Undecided), r(saved.None, prefillgroup.Receiving), r(saved.None, 0))
	}
	if n := s.coming(); n != plan.MaxTaking {
		t.Errorf("%d caches are on their way, want %d", n, plan.MaxTaking)
	}
}
