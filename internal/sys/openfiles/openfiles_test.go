package openfiles

import (
	"net"
	"testing"
)

func TestMaxPendingConns(t *testing.T) {
	for limit, want := range map[int]int{0: 1024, 20: 4, 64: 4, 128: 8, 1024: 64, 20000: 1024, 1 << 20: 1024} {
		if got := maxPendingOf(limit); got != want {
			t.Errorf("of %d files: %d, want %d", limit, got, want)
		}
	}
}

// closed is a connection that records whether it was closed.
type closed struct {
	net.Conn
	is bool
}

func (c *closed) Close() error { c.is = true; return nil }

// TestPendingConns: the oldest connection is closed, unless it authenticated or was closed before.
func TestPendingConns(t *testing.T) {
	s := NewPendingConns(2)
	var conns []*closed
	var in []*PendingConn
	next := func() {
		c := new(closed)
		conns, in = append(conns, c), append(in, s.Admit(c))
	}
	next() // 0
	next() // 1
	in[0].Authenticated()
	next() // 2
	if conns[0].is || conns[1].is {
		t.Fatal("one was closed while there was room")
	}
	next() // 3: the third connection
	if !conns[1].is || conns[2].is {
		t.Fatalf("not the oldest one was closed: %v %v", conns[1].is, conns[2].is)
	}
	_ = in[2].Close()
	next() // 4
	if conns[3].is || conns[4].is || conns[0].is {
		t.Error("a place that was given back is not free")
	}
	in[3].Authenticated()
	in[3].Authenticated()
	next() // 5
	next() // 6
	if !conns[4].is || conns[5].is {
		t.Error("the order is lost")
	}
}

// TestReserve: taken files are reopened, and a closed reserve holds none.
func TestReserve(t *testing.T) {
	r := &Reserve{want: 3}
	r.Fill()
	for i := range 3 {
		if !r.Take() {
			t.Fatalf("nothing to take after %d", i)
		}
	}
	if r.Take() {
		t.Error("more was taken than there was")
	}
	r.Fill()
	if len(r.held) != 3 {
		t.Errorf("%d came back", len(r.held))
	}
	r.Close()
	r.Fill()
	if len(r.held) != 0 || r.Take() {
		t.Error("a closed reserve holds files")
	}
}
