package topology

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// A node whose weight files changed is left out while others have intact ones, and comes back.
func TestNodeWithChangedWeightsIsLeftOut(t *testing.T) {
	a := testAuthority(3)
	for _, id := range []string{"a", "b", "c"} {
		a.Up(node(id, 1))
	}
	answerAll(t, a)
	changed := fmt.Errorf("%w: model: x.safetensors: was changed", ErrWeights)
	names := func() (s string) {
		_, nodes := a.Placement()
		for _, n := range nodes {
			s += n.ID
		}
		return s
	}
	recorded(a, a.Broken(a.Epoch(), "a step failed"))
	got := recorded(a, a.Answered(a.Epoch(), "b", changed))
	if len(got) == 0 || names() != "ac" || a.Fenced()["b"].Slow != 0 || !strings.Contains(a.Fenced()["b"].Reason, "x.safetensors") {
		t.Fatalf("effects %v, placement of %s, fenced %+v", got, names(), a.Fenced())
	}
	answerAll(t, a)
	if p, _ := a.Phase(); p != Serving {
		t.Fatalf("without it: %s", p)
	}
	until := a.Fenced()["b"].Until
	a.Tick(until)
	a.Responds("b", 1)
	recorded(a, a.Tick(until+2*time.Second))
	answerAll(t, a)
	if n := len(names()); n != 3 {
		t.Errorf("its files are good again: a placement of %s", names())
	}

	// When all nodes have the same damaged file, the last one is retried for ever.
	recorded(a, a.Broken(a.Epoch(), "a step failed"))
	for len(names()) > 1 {
		_, nodes := a.Placement()
		recorded(a, a.Answered(a.Epoch(), nodes[0].ID, changed))
	}
	last := names()
	if got := a.Answered(a.Epoch(), last, changed); got != nil {
		t.Fatalf("the last one: %v", got)
	}
	if p, why := a.Phase(); p != Gathering || !strings.Contains(why, "x.safetensors") {
		t.Errorf("%s, because %s", p, why)
	}
	if got := recorded(a, a.Tick(a.now+time.Second)); len(got) == 0 || names() != last {
		t.Errorf("a second later: %v, a placement of %s", got, names())
	}
}

// The first start waits for all nodes.
func TestChangedWeightsBeforeServing(t *testing.T) {
	a := testAuthority(2)
	a.Up(node("a", 1))
	recorded(a, a.Up(node("b", 1)))
	if got := a.Answered(a.Epoch(), "b", ErrWeights); got != nil || len(a.Fenced()) != 0 {
		t.Errorf("%v, fenced %v", got, a.Fenced())
	}
}
