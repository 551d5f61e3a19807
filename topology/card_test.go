package topology

import (
	"fmt"
	"testing"
	"time"
)

// TestCardComputesAlone: a node with a graphics card has the whole model, and the others are spares.
// After its loss the others have the model, until a card joins.
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

// TestCards lists the nodes that compute, and when a node that joins gets a part.
func TestCards(t *testing.T) {
	for _, c := range []struct {
		cards               Cards
		first, lost, joined string
	}{
		{"", "[b]", "[c]", "[c]"},
		{CardAlone, "[b]", "[c]", "[c]"},
		{CardsTogether, "[b c]", "[c]", "[c e]"},
		{CardsAndCPUs, "[a b c d]", "[a c d]", "[a c d e]"},
	} {
		a := testAuthority(4)
		a.cfg.Cards = c.cards
		part := func() string {
			answerAll(t, a)
			var out []string
			_, nodes := a.Placement()
			for _, n := range nodes {
				out = append(out, n.ID)
			}
			return fmt.Sprint(out)
		}
		onCard := func(id string) Node {
			n := node(id, 1)
			n.Device = "cuda:0"
			return n
		}
		for _, n := range []Node{node("a", 1), onCard("b"), onCard("c"), node("d", 1)} {
			a.Up(n)
		}
		if got := part(); got != c.first {
			t.Errorf("%q: placed on %s, not %s", c.cards, got, c.first)
		}
		a.Down("b", 1)
		if got := part(); got != c.lost {
			t.Errorf("%q: without b on %s, not %s", c.cards, got, c.lost)
		}
		a.Up(onCard("e"))
		a.Tick(10 * time.Second)
		if got := part(); got != c.joined {
			t.Errorf("%q: with e on %s, not %s", c.cards, got, c.joined)
		}
	}
}

// The tokens of a step: the fewest of all cards, and none where a CPU computes or a card does not report them.
func TestCardStep(t *testing.T) {
	card := func(step int) Node { return Node{Device: "cuda:0", DeviceStep: step} }
	for name, c := range map[string]struct {
		nodes []Node
		want  int
	}{
		"nobody": {nil, 0}, "a CPU": {[]Node{{}}, 0}, "a card": {[]Node{card(2048)}, 2048},
		"two cards": {[]Node{card(2048), card(512)}, 512}, "an old build": {[]Node{card(2048), card(0)}, 0},
		"a card and a CPU": {[]Node{card(2048), {DeviceStep: 512}}, 0},
	} {
		if got := CardStep(c.nodes); got != c.want {
			t.Errorf("%s: %d tokens, want %d", name, got, c.want)
		}
	}
	shape := Shape{Hidden: 4096, Layers: 32, Heads: 32, KVHeads: 8, HeadDim: 128, FFN: 14336} // 7e9 weights
	for _, c := range []struct {
		speed float64
		most  int
		want  int
	}{{0, 2048, 512}, {1e12, 2048, 512}, {2.7e13, 2048, 512}, {2.9e13, 2048, 1024}, {6e13, 2048, 2048}, {6e13, 1500, 1024}, {6e13, 400, 400}} {
		if got := shape.ShortCardStep(c.speed, c.most); got != c.want {
			t.Errorf("%g multiply-adds a second, at most %d: %d tokens, want %d", c.speed, c.most, got, c.want)
		}
	}
}
