package topology

import (
	"strings"
	"testing"
	"time"
)

// TestSuspect checks which rank is blamed for a failed step.
func TestSuspect(t *testing.T) {
	for _, c := range []struct {
		name   string
		ranks  int
		failed []Failure
		rank   int
		alone  bool
	}{
		{"all name one, which gives no reason", 3, []Failure{{Rank: 0, Named: []int{1}}, {Rank: 2, Named: []int{1}}}, 1, false},
		{"one answers, the other waits for it", 2, []Failure{{Rank: 0, Named: []int{1}}}, 1, false},
		{"two name each other", 2, []Failure{{Rank: 0, Named: []int{1}}, {Rank: 1, Named: []int{0}}}, 1, false},
		{"one fails alone, the others wait for it",
			3, []Failure{{Rank: 0, Named: []int{1}}, {Rank: 1, Alone: true}, {Rank: 2, Named: []int{0}}}, 1, true},
		{"all fail alone: it is the plan", 3, []Failure{{Rank: 0, Alone: true}, {Rank: 1, Alone: true}, {Rank: 2, Alone: true}}, -1, false},
		{"most fail alone: unknown", 3, []Failure{{Rank: 0, Alone: true}, {Rank: 1, Alone: true}, {Rank: 2, Named: []int{0}}}, -1, false},
		{"a single rank", 1, []Failure{{Rank: 0, Alone: true}}, -1, false},
		{"no rank gives a reason", 3, []Failure{{Rank: 0}, {Rank: 1}}, -1, false},
		{"ranks that are not there", 2, []Failure{{Rank: 0, Named: []int{7, -1, 0}}}, -1, false},
	} {
		if rank, alone := Suspect(c.ranks, c.failed); rank != c.rank || alone != c.alone {
			t.Errorf("%s: rank %d alone=%v, want %d %v", c.name, rank, alone, c.rank, c.alone)
		}
	}
}

// serving returns an authority with a serving epoch of these nodes.
func serving(t *testing.T, ids ...string) *Authority {
	t.Helper()
	a := testAuthority(len(ids))
	for _, id := range ids {
		a.Up(node(id, 1))
	}
	answerAll(t, a)
	if phase, why := a.Phase(); phase != Serving {
		t.Fatalf("%s: %s", phase, why)
	}
	return a
}

// breaks breaks an epoch and blames it on a node; the next epoch serves.
func breaks(t *testing.T, a *Authority, id string, alone bool) (fenced bool) {
	t.Helper()
	epoch := a.Epoch()
	out := recorded(a, a.CountFault(epoch, id, "peer timed out", alone))
	fenced = len(out) > 0
	recorded(a, a.Broken(epoch, "peer timed out"))
	answerAll(t, a)
	return fenced
}

// TestBlameFences: a node that breaks three epochs in a row is fenced while the others serve. It is
// readmitted later.
func TestBlameFences(t *testing.T) {
	a := serving(t, "a", "b", "c")
	for i := range 3 {
		if got := breaks(t, a, "b", false); got != (i == 2) {
			t.Fatalf("epoch %d: fenced=%v", i+1, got)
		}
	}
	f := a.Fenced()["b"]
	if p, _ := a.Placement(); len(p.Slices) != 2 ||
		!strings.Contains(f.Reason, "3 epochs in a row broke because of it, the last one: peer timed out") || f.Slow != 0 {
		t.Fatalf("%d nodes serve, fenced: %+v", len(p.Slices), f)
	}
	recorded(a, a.Tick(f.Until))
	a.Responds("b", 1)
	recorded(a, a.Tick(f.Until+time.Minute))
	answerAll(t, a)
	if p, _ := a.Placement(); len(p.Slices) != 3 {
		t.Fatalf("it did not come back: %d nodes", len(p.Slices))
	}
	if !breaks(t, a, "b", false) {
		t.Fatal("it broke another epoch, and is not left out at once")
	}
	if again := a.Fenced()["b"]; again.Times != 2 || again.Until-a.now <= f.Until {
		t.Errorf("the second time: %+v", again)
	}
	a.Up(node("b", 2)) // a new process
	recorded(a, a.Tick(a.now+time.Minute))
	answerAll(t, a)
	if breaks(t, a, "b", false) {
		t.Error("a new process is left out for the failures of the earlier one")
	}
}

// TestBlameNeedsARow: faults that are far apart, or of different nodes, fence no node.
func TestBlameNeedsARow(t *testing.T) {
	a := serving(t, "a", "b", "c")
	for i := range 6 {
		recorded(a, a.Tick(time.Duration(i)*(faultWindow+time.Minute)))
		if breaks(t, a, "b", false) {
			t.Fatalf("fault %d fenced it", i+1)
		}
	}
	if a.CountFault(a.Epoch()-1, "b", "late", false) != nil || a.CountFault(a.Epoch(), "nobody", "x", false) != nil {
		t.Error("an old epoch, or a node that is not there, was blamed")
	}
	one := serving(t, "a")
	for range 5 {
		if breaks(t, one, "a", false) {
			t.Fatal("the last node was left out")
		}
	}
}

// TestFaultOfARequest: a request that makes its owner fail moves to the next owner. It must not
// fence one node after the other.
func TestFaultOfARequest(t *testing.T) {
	a := serving(t, "a", "b", "c")
	for range 3 {
		breaks(t, a, "a", true)
	}
	if len(a.Fenced()) != 1 {
		t.Fatalf("fenced: %v", a.Fenced())
	}
	for range 6 {
		if breaks(t, a, "b", true) {
			t.Fatal("the second owner was left out as well")
		}
	}
	if len(a.Fenced()) != 0 {
		t.Errorf("the first owner is not forgiven: %v", a.Fenced())
	}
	b := serving(t, "a", "b", "c")
	for range 3 {
		breaks(t, b, "a", false) // the others waited for it, so no request has moved
	}
	breaks(t, b, "b", true)
	if len(b.Fenced()) != 1 {
		t.Errorf("a node that others waited for is forgiven when another fails alone: %v", b.Fenced())
	}
}

// TestRefusedWhileServing: a node whose build turns out to be incompatible is refused by name while
// the others serve.
func TestRefusedWhileServing(t *testing.T) {
	a := serving(t, "a", "b", "c")
	out := recorded(a, a.Refuse("b", 1, "it does not understand field 16"))
	if w, ok := out[0].(Withdraw); !ok || w.Kind != KindRefused || w.Node != "b" || !strings.Contains(w.Reason, "field 16") {
		t.Errorf("%+v", out[0])
	}
	answerAll(t, a)
	if p, _ := a.Placement(); len(p.Slices) != 2 || a.Refused()["b"] == "" {
		t.Errorf("%d nodes serve, refused %v", len(p.Slices), a.Refused())
	}
	a.Up(node("b", 2))
	recorded(a, a.Tick(a.now+time.Minute))
	answerAll(t, a)
	if p, _ := a.Placement(); len(p.Slices) != 3 || len(a.Refused()) != 0 {
		t.Errorf("%d nodes serve, refused %v", len(p.Slices), a.Refused())
	}
}
