package topology

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func testAuthority(nodes int) *Authority {
	return NewAuthority(AuthorityConfig{Shape: testShape(), Mapping: Gather, Nodes: nodes, Settle: time.Second,
		Backoff: 100 * time.Millisecond, ModelHash: "m"})
}

func node(id string, inc uint64) Node { return Node{ID: id, Incarnation: inc, ModelHash: "m"} }

// recorded replaces a store that writes every placement at once.
func recorded(a *Authority, effects []Effect) []Effect {
	var out []Effect
	for _, e := range effects {
		if r, ok := e.(Record); ok {
			out = append(out, a.Recorded(r.Placement.Epoch)...)
			continue
		}
		out = append(out, e)
	}
	return out
}

func answerAll(t *testing.T, a *Authority) []Effect {
	t.Helper()
	out := a.Recorded(a.Epoch())
	for range 2 {
		_, part := a.Placement()
		for _, n := range part {
			out = append(out, a.Answered(a.Epoch(), n.ID, nil)...)
		}
	}
	if p, why := a.Phase(); p != Serving {
		t.Fatalf("phase %s (%s) after every node answered", p, why)
	}
	return out
}

func TestAuthorityWaitsForItsNodes(t *testing.T) {
	a := testAuthority(2)
	if got := a.Up(node("a", 1)); got != nil {
		t.Fatalf("placed on one of two nodes: %v", got)
	}
	got := recorded(a, a.Up(node("b", 1)))
	if l, ok := got[0].(LoadSlices); !ok || len(l.Nodes) != 2 || l.Placement.Epoch != 1 {
		t.Fatalf("got %v", got)
	}
	answerAll(t, a)
}

func TestAuthorityReplacesALostNode(t *testing.T) {
	a := testAuthority(3)
	for _, id := range []string{"a", "b", "c"} {
		a.Up(node(id, 1))
	}
	answerAll(t, a)
	got := recorded(a, a.Down("b", 1))
	if _, ok := got[0].(Withdraw); !ok {
		t.Fatalf("steps were not stopped first: %v", got)
	}
	if l := got[1].(LoadSlices); len(l.Nodes) != 2 || l.Nodes[0].ID != "a" || l.Nodes[1].ID != "c" {
		t.Fatalf("got %v", l.Nodes)
	}
	answerAll(t, a)
	a.Up(node("b", 2))
	if p, _ := a.Phase(); p != Serving {
		t.Fatal("a joining node broke a serving placement at once")
	}
	got = recorded(a, a.Tick(5*time.Second))
	if l := got[1].(LoadSlices); len(l.Nodes) != 3 {
		t.Fatalf("the returned node took no share: %v", got)
	}
}

// A lost node may return with all its weights and caches and get no share: it must free them.
func TestAuthorityRetiresAReturnedSpare(t *testing.T) {
	a := testAuthority(2)
	a.cfg.MaxNodes = 2
	for _, id := range []string{"a", "b", "c"} {
		a.Up(node(id, 1))
	}
	answerAll(t, a)
	a.Down("a", 1)
	answerAll(t, a)
	got := a.Up(node("a", 1))
	if len(got) != 1 || !reflect.DeepEqual(got[0], Effect(RetireNode{Node: node("a", 1), Epoch: a.Epoch()})) {
		t.Fatalf("the effects for a spare with old caches are %v", got)
	}
}

// When the last node of an abandoned placement answers the load, that placement must not start to
// serve: it has no group.
func TestAuthorityDropsAnswersToWhatItGaveUp(t *testing.T) {
	a := testAuthority(2)
	a.Up(node("a", 1))
	recorded(a, a.Up(node("b", 1)))
	a.Answered(1, "a", nil)
	if got := a.Down("a", 1); got != nil {
		t.Fatalf("one node is too few: %v", got)
	}
	if got := a.Answered(1, "b", nil); got != nil {
		t.Fatalf("a late answer had an effect: %v", got)
	}
	if p, _ := a.Phase(); p != Gathering {
		t.Fatalf("the phase is %s", p)
	}
}

// A node may report an epoch of an earlier coordinator. The next epoch is then higher. The serving
// epoch keeps its number, or no call could end it.
func TestAuthorityGoesOnAfterTheNewestEpochSeen(t *testing.T) {
	a := testAuthority(1)
	a.Up(node("a", 1))
	answerAll(t, a)
	late := node("b", 1)
	late.Epoch = 41
	if got := a.Up(late); got[0].(RetireNode).Epoch != 41 {
		t.Fatalf("epoch 41 of the node is not retired: %v", got)
	}
	if a.Epoch() != 1 {
		t.Fatalf("the serving epoch became %d", a.Epoch())
	}
	got := recorded(a, a.Broken(1, "a step failed"))
	if len(got) != 2 || got[1].(LoadSlices).Placement.Epoch != 42 {
		t.Fatalf("after a broken step: %v", got)
	}
	b := NewAuthority(AuthorityConfig{Shape: testShape(), Mapping: Gather, Nodes: 1, After: 42, ModelHash: "m"})
	if got := recorded(b, b.Up(node("a", 1))); got[0].(LoadSlices).Placement.Epoch != 43 {
		t.Fatalf("the first epoch of the next coordinator: %v", got)
	}
}

func TestAuthorityIgnoresTheStale(t *testing.T) {
	a := testAuthority(1)
	a.Up(node("a", 7))
	answerAll(t, a)
	for name, got := range map[string][]Effect{
		"an old incarnation's death": a.Down("a", 6),
		// The clock was set back before this process began, or incarnations are random.
		"that of one with a higher number": a.Down("a", 8),
		"a step of another epoch":          a.Broken(99, "x"),
		"an answer of another epoch":       a.Answered(99, "a", errors.New("x")),
		"the same node again":              a.Up(node("a", 7)),
	} {
		if got != nil {
			t.Errorf("%s had an effect: %v", name, got)
		}
	}
	if got := a.Up(Node{ID: "z", Incarnation: 1, ModelHash: "other"}); got != nil || a.Refused()["z"] == "" {
		t.Errorf("a node with another model: %v, refused %v", got, a.Refused())
	}
}

// A process under a known id that may not take part ends the share of the old process, for any pair of
// incarnations.
func TestAnotherModelUnderTheSameName(t *testing.T) {
	for _, incarnation := range []uint64{6, 8} {
		a := testAuthority(1)
		a.Up(node("a", 7))
		answerAll(t, a)
		a.Up(Node{ID: "a", Incarnation: incarnation, ModelHash: "other"})
		if phase, _ := a.Phase(); phase == Serving || len(a.Known()) > 0 {
			t.Errorf("incarnation %d: %s, with %v", incarnation, phase, a.Known())
		}
	}
}

func TestAuthorityRetriesAFailedLoad(t *testing.T) {
	a := testAuthority(1)
	recorded(a, a.Up(node("a", 1)))
	a.Answered(1, "a", errors.New("disk on fire"))
	if got := a.Tick(50 * time.Millisecond); got != nil {
		t.Fatalf("retried without a pause: %v", got)
	}
	got := recorded(a, a.Tick(150*time.Millisecond))
	if l, ok := got[0].(LoadSlices); !ok || l.Placement.Epoch != 2 {
		t.Fatalf("got %v", got)
	}
	answerAll(t, a)
}

// No node receives a placement before it is in the store. After another coordinator has the lease, no
// node receives anything.
func TestAuthorityTellsWhatIsWritten(t *testing.T) {
	a := testAuthority(1)
	got := a.Up(node("a", 1))
	if r, ok := got[0].(Record); !ok || len(got) != 1 || r.Placement.Epoch != 1 {
		t.Fatalf("got %v", got)
	}
	a.Up(node("b", 1))
	if got := a.Recorded(1); got != nil {
		t.Fatalf("a placement that was given up while it was written had effects: %v", got)
	}
	got = a.Recorded(2)
	if l, ok := got[0].(LoadSlices); !ok || len(l.Nodes) != 2 {
		t.Fatalf("got %v", got)
	}
	answerAll(t, a)
	if got := a.Depose("b has the lease"); len(got) != 1 || got[0] != (Withdraw{Kind: KindDeposed, Reason: "b has the lease"}) {
		t.Fatalf("got %v", got)
	}
	for name, got := range map[string][]Effect{
		"up": a.Up(node("c", 1)), "down": a.Down("a", 1), "broken": a.Broken(2, "x"),
		"answered": a.Answered(2, "a", nil), "tick": a.Tick(time.Hour), "recorded": a.Recorded(2),
	} {
		if got != nil {
			t.Errorf("%s after it was deposed: %v", name, got)
		}
	}
}

// A drained node is retired when the others have its work. It takes no part until another process
// has its id. The last node cannot be drained.
func TestAuthorityDrains(t *testing.T) {
	a := testAuthority(2)
	a.Up(node("a", 1))
	a.Up(node("b", 1))
	answerAll(t, a)
	got, last := a.Drain("a", 1)
	if _, ok := got[0].(Withdraw); !ok || last {
		t.Fatalf("got %v, last %v", got, last)
	}
	got = recorded(a, got)
	l := got[1].(LoadSlices)
	if len(l.Nodes) != 1 || l.Nodes[0].ID != "b" || !reflect.DeepEqual(got[2], Effect(RetireNode{Node: node("a", 1), Epoch: a.Epoch()})) {
		t.Fatalf("got %v", got)
	}
	answerAll(t, a)
	a.Up(node("a", 1))
	if got := a.Tick(10 * time.Second); got != nil {
		t.Fatalf("a drained node is taken again: %v", got)
	}
	if got, last := a.Drain("b", 1); got != nil || !last {
		t.Fatalf("the last node: %v, %v", got, last)
	}
	if got, last := a.Drain("b", 9); got != nil || last {
		t.Fatalf("another process: %v, %v", got, last)
	}
	a.Up(node("a", 2))
	if got := recorded(a, a.Tick(20*time.Second)); len(got[1].(LoadSlices).Nodes) != 2 {
		t.Fatalf("the node that was started again takes no part: %v", got)
	}
}

// In any history epochs only grow, and steps are only possible between Serve and Withdraw. When
// events cease, every node that is up serves.
func TestAuthorityAlwaysSettles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := testAuthority(rapid.IntRange(0, 4).Draw(t, "want"))
		inc := map[string]uint64{}
		serving, last, written, now := false, uint32(0), uint32(0), time.Duration(0)
		see := func(effects []Effect) {
			for _, e := range effects {
				switch e := e.(type) {
				case Withdraw:
					serving = false
				case Serve:
					serving = true
				case Record:
					if serving || e.Placement.Epoch <= last {
						t.Fatalf("epoch %d opens while serving=%v, last was %d", e.Placement.Epoch, serving, last)
					}
					last = e.Placement.Epoch
				case LoadSlices:
					if serving || e.Placement.Epoch != written {
						t.Fatalf("load of epoch %d while serving=%v, written down is %d", e.Placement.Epoch, serving, written)
					}
				case RetireNode:
					if !serving && e.Epoch > written && e.Epoch > a.reported {
						t.Fatalf("epoch %d is sent before it is in the store", e.Epoch)
					}
				}
			}
		}
		answer := func(err error) {
			_, part := a.Placement()
			for _, n := range part {
				see(a.Answered(a.Epoch(), n.ID, err))
			}
		}
		write := func() {
			written = max(written, last)
			see(a.Recorded(last))
		}
		for range rapid.IntRange(0, 40).Draw(t, "events") {
			id := fmt.Sprint("n", rapid.IntRange(0, 4).Draw(t, "node"))
			switch rapid.IntRange(0, 7).Draw(t, "event") {
			case 0:
				inc[id]++
				see(a.Up(node(id, inc[id])))
			case 1:
				see(a.Down(id, inc[id]))
			case 2:
				answer(nil)
			case 3:
				answer(errors.New("no"))
			case 4:
				see(a.Broken(a.Epoch(), "broken"))
			case 5:
				now += time.Duration(rapid.IntRange(0, 3000).Draw(t, "ms")) * time.Millisecond
				see(a.Tick(now))
			case 6:
				write()
			case 7:
				effects, _ := a.Drain(id, inc[id])
				see(effects)
			}
		}
		for i := range 5 {
			inc[fmt.Sprint("n", i)]++
			see(a.Up(node(fmt.Sprint("n", i), inc[fmt.Sprint("n", i)])))
		}
		for range 8 {
			now += 5 * time.Second
			see(a.Tick(now))
			write()
			answer(nil)
			answer(nil)
		}
		if _, part := a.Placement(); !serving || len(part) != 5 {
			p, why := a.Phase()
			t.Fatalf("did not settle: %s (%s), %d nodes", p, why, len(part))
		}
	})
}

// TestSuccessorWaitsForAWhile: a coordinator that succeeds another one waits for all nodes, but not for
// ever, since a node may be lost permanently.
func TestSuccessorWaitsForAWhile(t *testing.T) {
	for after, want := range map[uint32]AuthorityPhase{0: Gathering, 7: Loading} {
		a := NewAuthority(AuthorityConfig{Shape: testShape(), Mapping: Gather, Nodes: 3, Settle: time.Second,
			Backoff: time.Millisecond, ModelHash: "m", After: after})
		recorded(a, a.Tick(time.Minute))
		recorded(a, a.Up(node("a", 1)))
		recorded(a, a.Tick(time.Minute+successorWait*time.Second-1))
		if p, why := a.Phase(); p != Gathering {
			t.Fatalf("after epoch %d it does not wait: %s %s", after, p, why)
		}
		recorded(a, a.Tick(time.Minute+successorWait*time.Second))
		if p, why := a.Phase(); p != want {
			t.Errorf("after epoch %d with one node of three: %s (%s), want %s", after, p, why, want)
		}
	}
}

// TestRefused: a refused node takes no part while it is up, even if an older process of its id did,
// and the reason is shown until a placement serves.
func TestRefused(t *testing.T) {
	a := testAuthority(1)
	if got := a.Refuse("b", 1, "it is another build"); len(got) > 0 {
		t.Errorf("refused: %v", got)
	}
	if phase, why := a.Phase(); phase != Gathering || !strings.Contains(why, "1 are refused") {
		t.Errorf("%s: %s", phase, why)
	}
	a.Up(node("a", 7))
	answerAll(t, a)
	if phase, _ := a.Phase(); phase != Serving || a.Refused()["b"] == "" {
		t.Fatalf("%s, refused %v", phase, a.Refused())
	}
	if a.Down("b", 2); a.Refused()["b"] == "" {
		t.Error("another process of its name went, and it is forgotten")
	}
	if a.Down("b", 1); len(a.Refused()) > 0 {
		t.Errorf("it went: %v", a.Refused())
	}
	if got := a.Refuse("a", 8, "it is another build"); len(got) == 0 {
		t.Error("a process of another build took the name of one that serves")
	}
	if phase, why := a.Phase(); phase != Gathering || !strings.Contains(why, "1 are refused") {
		t.Errorf("%s: %s", phase, why)
	}
	if a.Up(node("a", 9)); len(a.Refused()) > 0 {
		t.Errorf("the right one is back: %v", a.Refused())
	}
}
