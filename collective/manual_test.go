package collective

import (
	"errors"
	"testing"
	"time"
)

// TestManual: a Manual group gives the results of a Group, and only the owner's clock makes its
// deadline pass.
func TestManual(t *testing.T) {
	var wire []packet
	groups := make([]ManualGroup, 2)
	for r := range groups {
		var err error
		groups[r], err = NewManualGroup(Config{Rank: r, Size: 2, Epoch: 1, Deadline: time.Second}, handEnd{r, &wire})
		if err != nil {
			t.Fatal(err)
		}
	}
	pump := func() {
		for i := 0; i < len(wire); i++ {
			groups[wire[i].dst].receive(wire[i].src, wire[i].msg)
		}
		wire = nil
	}
	got := [2][]float32{make([]float32, 2), make([]float32, 2)}
	done := 0
	for r, g := range groups {
		g.AllGather(Op(0, 1), []float32{float32(r + 1)}, [][]float32{got[r][:1], got[r][1:]}, func(err error) {
			if err != nil {
				t.Error(err)
			}
			done++
		})
		g.Work()
	}
	pump()
	if done != 2 || got[0][1] != 2 || got[1][0] != 1 {
		t.Fatalf("%d ranks are done, with %v", done, got)
	}
	var failed error
	groups[0].Barrier(Op(0, 2), func(err error) { failed = err })
	groups[0].Work()
	groups[0].Advance(time.Hour) // a pause of the owner
	if failed != nil {
		t.Fatalf("a pause was blamed on the peer: %v", failed)
	}
	for range 16 {
		groups[0].Advance(groups[0].Period())
	}
	if !errors.Is(failed, ErrPeerTimeout) {
		t.Fatalf("after the deadline: %v", failed)
	}
	for _, g := range groups {
		g.Close()
	}
}

type handEnd struct {
	rank int
	wire *[]packet
}

func (e handEnd) Broadcast(msg []byte) error { return e.Send(1-e.rank, msg) }
func (e handEnd) Send(dst int, msg []byte) error {
	*e.wire = append(*e.wire, packet{e.rank, dst, append([]byte(nil), msg...)})
	return nil
}
func (handEnd) Receive(func(int, []byte)) {}
func (handEnd) Close() error              { return nil }
