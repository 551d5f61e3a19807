package topology

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"
)

// TestStall: a verdict needs a node without progress while all others wait.
func TestStall(t *testing.T) {
	busy := func(n uint64) Progress { return Progress{Busy: true, Finished: n} }
	waits := func(n uint64) Progress { return Progress{Finished: n} }
	for _, x := range []struct {
		what  string
		looks [][]Progress // a second apart; the deadline is two seconds
		want  []int
	}{
		{"a hung executor", [][]Progress{{busy(3), waits(3)}, {busy(3), waits(3)}, {busy(3), waits(3)}}, []int{0}},
		{"a hung actor", [][]Progress{{{Silent: true}, {Done: true}}, {{Silent: true}, {Done: true}}, {{Silent: true}, {Done: true}}}, []int{0}},
		{"it moves", [][]Progress{{busy(3), waits(3)}, {busy(3), waits(3)}, {busy(4), waits(3)}}, nil},
		{"others work", [][]Progress{{busy(3), busy(3), waits(3)}, {busy(3), busy(3), waits(3)}, {busy(3), busy(4), waits(3)}}, nil},
		{"two of three hang",
			[][]Progress{{busy(3), busy(3), waits(3)}, {busy(3), busy(3), waits(3)}, {busy(3), busy(3), waits(3)}}, []int{0, 1}},
		{"all hang: nobody waits", [][]Progress{{busy(1), busy(1)}, {busy(1), busy(1)}, {busy(1), busy(1)}}, nil},
		{"all wait alike: a message is lost", [][]Progress{{waits(2), waits(2)}, {waits(2), waits(2)}, {waits(2), waits(2)}}, nil},
		{"one waits with less done: it may not have heard another",
			[][]Progress{{waits(2), waits(3), waits(3)}, {waits(2), waits(3), waits(3)}, {waits(2), waits(3), waits(3)}}, nil},
		{"too early", [][]Progress{{busy(3), waits(3)}, {busy(3), waits(3)}}, nil},
		{"all stood still, and one is the first to go on",
			[][]Progress{{busy(3), busy(3)}, {busy(3), busy(3)}, {busy(3), busy(3)}, {waits(4), busy(3)}}, nil},
		{"all stood still, and one never continues",
			[][]Progress{{busy(3), busy(3)}, {busy(3), busy(3)}, {waits(4), busy(3)}, {waits(4), busy(3)}, {waits(4), busy(3)}}, []int{1}},
		{"alone", [][]Progress{{busy(3)}, {busy(3)}, {busy(3)}}, nil},
	} {
		s, got := Stall{Deadline: 2 * time.Second}, []int(nil)
		for i, l := range x.looks {
			got = s.Check(time.Duration(i)*time.Second, l)
		}
		if !slices.Equal(got, x.want) {
			t.Errorf("%s: got %v, want %v", x.what, got, x.want)
		}
	}
}

// TestLoadStall: a load may continue as long as it moves. A node that does not move hangs if
// another one works.
func TestLoadStall(t *testing.T) {
	at := func(n uint64) LoadProgress { return LoadProgress{Moved: n} }
	done, silent := LoadProgress{Done: true}, LoadProgress{Silent: true}
	for _, x := range []struct {
		what  string
		looks [][]LoadProgress // one second apart; the limit is two seconds for a node, five for all
		want  []int
		over  bool
	}{
		{"one hangs, one is done", [][]LoadProgress{{at(3), at(0)}, {at(3), done}, {at(3), done}}, []int{0}, false},
		{"one is silent, one moves", [][]LoadProgress{{silent, at(0)}, {silent, at(1)}, {silent, at(2)}}, []int{0}, false},
		{"it hung before it began", [][]LoadProgress{{at(0), at(1)}, {at(0), at(2)}, {at(0), at(2)}}, []int{0}, false},
		{"slow, and moves", [][]LoadProgress{{at(3), done}, {at(3), done}, {at(4), done}, {at(4), done}, {at(5), done}}, nil, false},
		{"silent for a moment", [][]LoadProgress{{at(3), done}, {silent, done}, {at(4), done}, {silent, done}}, nil, false},
		{"two of three hang", [][]LoadProgress{{at(3), at(3), at(3)}, {at(3), at(3), at(4)}, {at(3), at(3), at(5)}}, []int{0, 1}, false},
		{"none moves: a shared resource", [][]LoadProgress{{at(3), at(3)}, {at(3), at(3)}, {at(3), at(3)}, {at(3), at(3)}}, nil, false},
		{"none moves, for long",
			[][]LoadProgress{{at(3), at(3)}, {at(3), at(3)}, {at(3), at(3)}, {at(3), at(3)}, {at(3), at(3)}, {at(3), at(3)}}, nil, true},
		{"alone, for long", [][]LoadProgress{{at(3)}, {at(3)}, {at(3)}, {at(3)}, {at(3)}, {at(3)}}, nil, true},
		{"alone, and moves", [][]LoadProgress{{at(3)}, {at(4)}, {at(5)}, {at(6)}, {at(7)}, {at(8)}, {at(9)}}, nil, false},
		{"all stood still, and one is the first to go on",
			[][]LoadProgress{{at(3), at(3)}, {at(3), at(3)}, {at(3), at(3)}, {at(3), at(3)}, {at(4), at(3)}}, nil, false},
		{"all stood still, and one never continues",
			[][]LoadProgress{{at(3), at(3)}, {at(3), at(3)}, {at(3), at(3)}, {at(3), at(3)}, {at(4), at(3)}, {at(5), at(3)}}, []int{1}, false},
		{"all are done",
			[][]LoadProgress{{done, done}, {done, done}, {done, done}, {done, done}, {done, done}, {done, done}, {done, done}}, nil, false},
		{"too early", [][]LoadProgress{{at(3), done}, {at(3), done}}, nil, false},
	} {
		s, got, over := LoadStall{Deadline: 2 * time.Second, All: 5 * time.Second}, []int(nil), false
		for i, l := range x.looks {
			got, over = s.Check(time.Duration(i)*time.Second, l)
		}
		if !slices.Equal(got, x.want) || over != x.over {
			t.Errorf("%s: got %v %v, want %v %v", x.what, got, over, x.want, x.over)
		}
	}
}

// paced runs steps; cost is how long a rank keeps the others waiting in a step.
func paced(p *StragglerDetector, steps int, wall time.Duration, ids []string,
	cost func(step, rank int) time.Duration) (out []Verdict, fencedAfter time.Duration) {
	for s := range steps {
		late := make([][]time.Duration, len(ids))
		for i := range late {
			late[i] = make([]time.Duration, len(ids))
			for j := range late[i] {
				if i != j {
					late[i][j] = cost(s, j)
				}
			}
		}
		for _, r := range p.Step(wall, ids, late, nil) {
			out = append(out, r)
			if r.Fence && fencedAfter == 0 {
				fencedAfter = time.Duration(s+1) * wall
			}
		}
	}
	return out, fencedAfter
}

// TestPaceOfOwners: a node with more work of its own keeps the others waiting without being a
// straggler, unless they also wait for it in the rest of the step.
func TestPaceOfOwners(t *testing.T) {
	ms := func(n ...int) (out []time.Duration) {
		for _, d := range n {
			out = append(out, time.Duration(d)*time.Millisecond)
		}
		return out
	}
	for _, c := range []struct {
		what  string
		own   []time.Duration // in a step of 100 ms
		waits int             // the others wait for the first rank
		fence bool
	}{
		{"a long sequence", ms(70, 0, 0, 0), 70, false},
		{"own work is not reported", nil, 70, true},
		{"all have one", ms(70, 70, 70, 70), 70, true},
		{"two have one", ms(70, 70, 0, 0), 60, false},
		{"two nodes", ms(70, 0), 70, false},
		{"two nodes with one each", ms(40, 40), 60, true},
		{"a long sequence, and slow in the rest", ms(60, 0, 0, 0), 85, true},
		{"hardly any rest", ms(96, 0, 0, 0), 100, false},
		{"more than the step", ms(150, 0, 0, 0), 100, false},
	} {
		n := max(2, len(c.own))
		ids, late := []string{"a", "b", "c", "d"}[:n], make([][]time.Duration, n)
		for i := range late {
			if late[i] = make([]time.Duration, n); i > 0 {
				late[i][0] = time.Duration(c.waits) * time.Millisecond
			}
		}
		var p StragglerDetector
		fenced := false
		for range 200 {
			for _, r := range p.Step(100*time.Millisecond, ids, late, c.own) {
				fenced = fenced || r.Fence && r.ID == "a"
			}
		}
		if fenced != c.fence {
			t.Errorf("%s: fenced %t, ratio %.2f", c.what, fenced, p.Ratio("a"))
		}
	}
}

func TestPace(t *testing.T) {
	ids := []string{"a", "b", "c", "d"}
	const wall = 100 * time.Millisecond
	var p StragglerDetector
	got, after := paced(&p, 100, wall, ids, func(_, rank int) time.Duration {
		if rank == 2 {
			return 80 * time.Millisecond
		}
		return 2 * time.Millisecond
	})
	if len(got) < 2 || got[0] != (Verdict{ID: "c", Ratio: got[0].Ratio}) || !got[1].Fence || got[1].ID != "c" ||
		after < delayFence || after > 2*delayFence {
		t.Errorf("a node at a fifth of the speed: %+v after %v", got, after)
	}
	if r := p.Ratio("c"); r < 0.7 || r > 0.9 {
		t.Errorf("its ratio is %v", r)
	}
	// A short pause does not count, however long its step is.
	p.Reset()
	if got, _ := paced(&p, 200, wall, ids, func(s, rank int) time.Duration {
		if rank == 1 && s%40 < 8 {
			return 90 * time.Millisecond
		}
		return 5 * time.Millisecond
	}); slices.ContainsFunc(got, func(r Verdict) bool { return r.Fence }) {
		t.Errorf("a node that is slow a fifth of the time: %+v", got)
	}
	// Every node is late now and then.
	p.Reset()
	r := rand.New(rand.NewPCG(1, 2))
	if got, _ := paced(&p, 2000, wall, ids, func(_, rank int) time.Duration { return time.Duration(r.Int64N(int64(wall))) / 2 }); got != nil {
		t.Errorf("noise: %+v", got)
	}
	// A single rank's blame does not count.
	p.Reset()
	for range 300 {
		late := [][]time.Duration{{0, 90 * time.Millisecond, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}}
		if got := p.Step(wall, ids, late, nil); got != nil {
			t.Fatalf("the word of one rank: %+v", got)
		}
	}
	// Each of two ranks waits only for the other's messages. A slow network is neither's fault, but
	// a node that is also slow is found.
	for _, c := range []struct {
		slow  time.Duration
		fence bool
	}{{0, false}, {60 * time.Millisecond, true}} {
		p.Reset()
		late := [][]time.Duration{{0, 30 * time.Millisecond}, {30*time.Millisecond + c.slow, 0}}
		var all []Verdict
		for range 300 {
			all = append(all, p.Step(45*time.Millisecond+c.slow, ids[:2], late, nil)...)
		}
		if fenced := slices.ContainsFunc(all, func(r Verdict) bool { return r.Fence && r.ID == "a" }); fenced != c.fence ||
			!c.fence && all != nil {
			t.Errorf("two ranks over a slow network, one of them %v slower: %+v", c.slow, all[:min(len(all), 3)])
		}
	}
	// Very short steps.
	p.Reset()
	if got, _ := paced(&p, 20000, time.Millisecond, ids,
		func(_, rank int) time.Duration { return time.Duration(900*rank/3) * time.Microsecond }); got != nil {
		t.Errorf("steps of a millisecond: %+v", got)
	}
	// It keeps up again before it is fenced.
	p.Reset()
	got, _ = paced(&p, 120, wall, ids, func(s, rank int) time.Duration {
		if rank == 0 && s < 60 {
			return 80 * time.Millisecond
		}
		return 0
	})
	if len(got) != 2 || got[0].Fence || !got[1].Over {
		t.Errorf("slow for six seconds: %+v", got)
	}
}

// TestFence: a fenced node is out at once and back after a pause and a probe, with a smaller share
// if it was slow. The pause doubles, a new process starts afresh, and the last node stays.
func TestFence(t *testing.T) {
	a := testAuthority(3)
	for _, id := range []string{"a", "b", "c"} {
		a.Up(node(id, 1))
	}
	answerAll(t, a)
	part := func() string {
		_, nodes := a.Placement()
		s := ""
		for i, n := range nodes {
			s += fmt.Sprintf("%s:%d ", n.ID, a.place.Slices[i].FFN.Len())
		}
		return s
	}
	whole := part()
	if got := a.Fence("b", 9, "x", false); got != nil {
		t.Fatalf("another process was fenced: %v", got)
	}
	now := time.Duration(0)
	for times := 1; times <= 2; times++ {
		got := recorded(a, a.Fence("b", 1, "slow", false))
		if _, ok := got[0].(Withdraw); !ok || len(got[1].(LoadSlices).Nodes) != 2 {
			t.Fatalf("fenced: %v", got)
		}
		answerAll(t, a)
		if a.Fence("b", 1, "again", false) != nil || len(a.Fenced()) != 1 {
			t.Fatal("fenced twice")
		}
		a.Down("b", 1) // gossip loses and finds it: it stays out
		a.Up(node("b", 1))
		until := a.Fenced()["b"].Until
		if want := now + a.cfg.Pause<<(times-1); until != want {
			t.Fatalf("fence %d until %v, want %v", times, until, want)
		}
		if a.Tick(until-1) != nil {
			t.Fatal("probed early")
		}
		a.Responds("b", 1)
		if len(a.Fenced()) != 1 {
			t.Fatal("back early")
		}
		if got := a.Tick(until); len(got) != 1 || !reflect.DeepEqual(got[0], Effect(Probe{node("b", 1)})) {
			t.Fatalf("after the pause: %v", got)
		}
		if got := a.Tick(until + 1); got != nil {
			t.Fatalf("probed twice: %v", got)
		}
		a.Responds("b", 1)
		now = until + 2*time.Second
		got = recorded(a, a.Tick(now))
		if w, ok := got[0].(Withdraw); !ok || !w.Grown {
			t.Fatalf("back: %v", got)
		}
		answerAll(t, a)
		t.Logf("%s -> %s", whole, part())
	}
	sizes := map[string]int{}
	for i, n := range a.members {
		sizes[n.ID] = a.place.Slices[i].FFN.Len()
	}
	if sizes["b"]*2 > sizes["a"] {
		t.Errorf("twice too slow, but its share is %v", sizes)
	}
	// The remaining node keeps serving although it is slow, unless it hangs.
	a.Fence("b", 1, "slow", false)
	a.Down("c", 1)
	if _, nodes := a.Placement(); len(nodes) != 1 || nodes[0].ID != "a" {
		t.Fatalf("got %v", nodes)
	}
	if a.Fence("a", 1, "slow", false) != nil {
		t.Error("the last node was fenced")
	}
	a.Down("a", 1)
	if _, nodes := a.Placement(); len(nodes) != 1 || nodes[0].ID != "b" {
		t.Fatalf("a slow node is better than none: %v", nodes)
	}
	a.Fence("b", 1, "hangs", true) // the last node stays
	b := testAuthority(2)
	b.Up(node("a", 1))
	b.Up(node("b", 1))
	answerAll(t, b)
	b.Fence("b", 1, "hangs", true)
	b.Down("a", 1)
	if p, _ := b.Phase(); p != Gathering {
		t.Fatalf("with a hung node alone: %s", p)
	}
	if got := b.Tick(b.cfg.Pause); len(got) != 1 || !reflect.DeepEqual(got[0], Effect(Probe{node("b", 1)})) {
		t.Fatalf("the last node is not probed: %v", got)
	}
	b.Responds("b", 1)
	if got := b.Tick(b.cfg.Pause + 1); len(got) != 1 {
		t.Fatalf("after the probe: %v", got)
	}
	a.Up(node("b", 2))
	if len(a.Fenced()) != 0 {
		t.Error("a new process is fenced for the failures of its predecessor")
	}
}

// TestLastNodeDiesLoading: the reason is that no node is left, not the load error of the lost node.
func TestLastNodeDiesLoading(t *testing.T) {
	a := testAuthority(1)
	recorded(a, a.Up(node("a", 1)))
	a.Answered(a.Epoch(), "a", errors.New("peer lost"))
	a.Down("a", 1)
	if p, why := a.Phase(); p != Gathering || why != "0 of 1 nodes are here" {
		t.Errorf("%s: %s", p, why)
	}
}
