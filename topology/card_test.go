package topology

import (
	"fmt"
	"testing"
	"time"
)

// TestCardComputesAlone: a node with a graphics card has the whole model, and the others are spares. They
// take over when it is lost, and give way when a card joins.
func TestCardComputesAlone(t *testing.T) {
	a := testAuthority(3)
	part := func() string {
		answerAll(t, a)
		var out []string
		_, nodes := a.Placement()
		for _, n := range nodes {
			out = append(out, n.ID)
		}
		return fmt.Sprint(out)
	}
	onCard := func(id string, incarnation uint64) Node {
		n := node(id, incarnation)
		n.Device = "cuda:0"
		return n
	}
	a.Up(node("a", 1))
	a.Up(onCard("b", 1))
	a.Up(node("c", 1))
	if got := part(); got != "[b]" {
		t.Fatalf("placed on %s", got)
	}
	a.Up(node("d", 1))
	if got := a.Tick(5 * time.Second); len(got) != 0 {
		t.Errorf("a spare without a card changed the placement: %v", got)
	}
	a.Down("b", 1)
	if got := part(); got != "[a c d]" {
		t.Errorf("after the loss of the card: %s", got)
	}
	a.Up(onCard("e", 1))
	if p, _ := a.Phase(); p != Serving {
		t.Error("a card that joins broke a serving placement at once")
	}
	a.Tick(10 * time.Second)
	if got := part(); got != "[e]" {
		t.Errorf("after a card has joined: %s", got)
	}
}
