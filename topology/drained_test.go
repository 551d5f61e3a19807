package topology

import (
	"fmt"
	"maps"
	"testing"
	"time"
)

// TestDrainedOutlivesItsCoordinator: the next write of the record carries the drained nodes to the
// next coordinator. Its authority leaves them out until another process has the id.
func TestDrainedOutlivesItsCoordinator(t *testing.T) {
	var store Claim
	revision := uint64(0)
	carry := func(l *Lease, effects []LeaseEffect) {
		for len(effects) > 0 {
			e := effects[0]
			effects = effects[1:]
			switch e := e.(type) {
			case ReadClaim:
				effects = append(effects, l.ReadDone(store, revision)...)
			case WriteClaim:
				if e.After != revision {
					effects = append(effects, l.WriteConflict()...)
					continue
				}
				store, revision = e.Claim, revision+1
				effects = append(effects, l.WriteDone(revision)...)
			}
		}
	}
	lease := func(holder string, found bool) *Lease {
		return NewLease(LeaseConfig{Holder: holder, Incarnation: 7, TTL: 8 * time.Second, Hint: time.Second,
			Renew: time.Second, Bootstrap: found})
	}
	first := lease("first", true)
	carry(first, first.Tick(0))
	if !first.Holding() {
		t.Fatal("the first one does not hold the lease")
	}
	carry(first, first.Record(Placement{Epoch: 4}, nil))
	want := map[string]uint64{"b": 1}
	carry(first, first.Drained(want))
	carry(first, first.Record(Placement{Epoch: 5}, nil))
	carry(first, first.Tick(2*time.Second)) // renewed
	if !maps.Equal(store.Drained, want) || store.Placement.Epoch != 5 {
		t.Fatalf("the record is %+v", store)
	}
	second := lease("second", false)
	for now := time.Duration(0); now < 30*time.Second && !second.Holding(); now += time.Second / 2 {
		carry(second, second.Tick(now))
	}
	claim, _ := second.Claim()
	if !second.Holding() || !maps.Equal(claim.Drained, want) {
		t.Fatalf("the second one has %+v", claim)
	}
	carry(second, second.Record(Placement{Epoch: 6}, nil))
	if !maps.Equal(store.Drained, want) {
		t.Errorf("its first write forgot them: %+v", store)
	}
	if carry(first, first.Tick(40*time.Second)); first.Drained(nil) != nil {
		t.Error("a deposed one writes")
	}

	a := NewAuthority(AuthorityConfig{Shape: testShape(), Mapping: Gather, Nodes: 1, Settle: time.Second,
		Backoff: time.Second, ModelHash: "m", After: 5, Drained: claim.Drained})
	a.Up(node("b", 1))
	if p, _ := a.Phase(); p != Gathering {
		t.Fatalf("a drained node is placed: %s", p)
	}
	a.Up(node("a", 1))
	answerAll(t, a)
	if _, part := a.Placement(); len(part) != 1 || part[0].ID != "a" {
		t.Fatalf("placed on %v", part)
	}
	a.Up(node("b", 2))
	recorded(a, a.Tick(time.Minute))
	if _, part := a.Placement(); len(part) != 2 {
		t.Errorf("a new process of the name takes no part: %v", part)
	}
}

// TestUndrain: an undrained node comes back after Settle.
func TestUndrain(t *testing.T) {
	a := NewAuthority(AuthorityConfig{Shape: testShape(), Mapping: Gather, Nodes: 2, Settle: time.Second,
		Backoff: time.Second, ModelHash: "m"})
	a.Up(node("a", 1))
	a.Up(node("b", 1))
	answerAll(t, a)
	if a.Undrain("b") || a.Undrain("c") {
		t.Error("who is not drained was undrained")
	}
	recorded(a, first(a.Drain("b", 1)))
	answerAll(t, a)
	if _, part := a.Placement(); len(part) != 1 {
		t.Fatalf("drained, and placed on %v", part)
	}
	if !a.Undrain("b") || len(a.Drained()) != 0 {
		t.Fatalf("still drained: %v", a.Drained())
	}
	recorded(a, a.Tick(time.Minute))
	if _, part := a.Placement(); len(part) != 2 {
		t.Errorf("it takes no part: %v", part)
	}
}

func first(e []Effect, _ bool) []Effect { return e }

// TestDrainedIsRecorded: a call of Drained is answered by the write that has its nodes, and not by a write that was in
// flight before. A lost answer, or a write that was not stored, delays the answer until the record has the nodes.
func TestDrainedIsRecorded(t *testing.T) {
	one, two := map[string]uint64{"b": 1}, map[string]uint64{"b": 1, "c": 1}
	recordedSets := func(effects []LeaseEffect) (sets []map[string]uint64) {
		for _, e := range effects {
			if r, ok := e.(DrainedRecorded); ok {
				sets = append(sets, r.Nodes)
			}
		}
		return sets
	}
	writes := func(effects []LeaseEffect) *WriteClaim {
		for _, e := range effects {
			if w, ok := e.(WriteClaim); ok {
				return &w
			}
		}
		return nil
	}
	holder := func() (*Lease, uint64) {
		l := NewLease(LeaseConfig{Holder: "a", Incarnation: 7, TTL: 8 * time.Second, Hint: time.Second, Renew: time.Second, Bootstrap: true})
		l.Tick(0)
		l.ReadDone(Claim{}, 0)
		l.Tick(0)
		if got := l.WriteDone(1); !l.Holding() || len(recordedSets(got)) != 0 {
			t.Fatalf("after the election: %v", got)
		}
		return l, 1
	}

	l, revision := holder()
	w := writes(l.Tick(2 * time.Second)) // renews, without the nodes
	if w == nil || writes(l.Drained(one)) != nil {
		t.Fatal("a second write is in flight")
	}
	effects := l.WriteDone(revision + 1)
	if sets := recordedSets(effects); len(sets) != 0 {
		t.Fatalf("a write that began before recorded %v", sets)
	}
	if w = writes(effects); w == nil || !maps.Equal(w.Claim.Drained, one) {
		t.Fatalf("the nodes are not written at once: %v", effects)
	}
	l.Drained(two) // while the first set is being written
	effects = l.WriteDone(revision + 2)
	if sets := recordedSets(effects); len(sets) != 1 || !maps.Equal(sets[0], one) {
		t.Fatalf("recorded %v, want %v", sets, one)
	}
	if sets := recordedSets(l.WriteDone(revision + 3)); len(sets) != 1 || !maps.Equal(sets[0], two) {
		t.Fatalf("recorded %v, want %v", sets, two)
	}
	l.Tick(10 * time.Second)
	if sets := recordedSets(l.WriteDone(revision + 4)); len(sets) != 0 {
		t.Errorf("a renewal recorded %v again", sets)
	}

	for name, stored := range map[string]bool{"the answer was lost": true, "the write was lost": false} {
		l, revision := holder()
		w := writes(l.Drained(one))
		l.OutcomeUnknown()
		l.Tick(5 * time.Second) // reads
		claim, _ := l.Claim()
		if stored {
			claim, revision = w.Claim, revision+1
		}
		effects := l.ReadDone(claim, revision)
		for now := 6 * time.Second; len(recordedSets(effects)) == 0; now += time.Second {
			if stored || now > 20*time.Second {
				t.Fatalf("%s: %v", name, effects)
			}
			if effects = l.Tick(now); writes(effects) != nil {
				effects = l.WriteDone(revision + 1)
			}
		}
		if sets := recordedSets(effects); !maps.Equal(sets[0], one) {
			t.Errorf("%s: recorded %v", name, sets)
		}
	}
}

// TestDrainedNodesThatAreGone: nodes without a fixed name are drained at each of their ends. The newest are remembered,
// because a node that was lost by mistake comes back drained. One that is up stays drained in any case.
func TestDrainedNodesThatAreGone(t *testing.T) {
	a := NewAuthority(AuthorityConfig{Shape: testShape(), Mapping: Gather, Nodes: 1, Settle: time.Second,
		Backoff: time.Second, ModelHash: "m", Drained: map[string]uint64{"earlier": 1, "here": 1}})
	a.Up(node("here", 1))
	a.Up(node("stays", 1))
	const all = 4 * maxGoneDrained
	for i := range all {
		id := fmt.Sprint("n", i)
		a.Up(node(id, 1))
		if _, last := a.Drain(id, 1); last {
			t.Fatalf("%s is the last node", id)
		}
		a.Down(id, 1)
	}
	if n := len(a.Drained()); n > maxGoneDrained+2 || n != len(a.drainedOrder) {
		t.Errorf("%d drained nodes are remembered, %d in order", n, len(a.drainedOrder))
	}
	newest := fmt.Sprint("n", all-1)
	if a.Drained()["here"] != 1 || a.Drained()[newest] != 1 || a.Drained()["n0"] != 0 || a.Drained()["earlier"] != 0 {
		t.Errorf("the wrong ones: %v", a.Drained())
	}
	if a.Up(node(newest, 1)); !a.isOut(a.nodes[newest]) {
		t.Error("a drained node that was lost by mistake takes part")
	}
	if !a.Undrain("here") || a.Drained()["here"] != 0 {
		t.Error("not undrained")
	}
}
