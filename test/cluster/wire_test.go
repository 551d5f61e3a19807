package cluster_test

import (
	"context"
	"io"
	"net"
	"testing"
	"time"
)

// TestWire: the simulated network carries TCP and UDP of both versions of IP, cuts one direction, and changes bytes in
// transit.
func TestWire(t *testing.T) {
	for _, kind := range []wireKind{keyedWire, ipv6Wire} {
		t.Run(kind.name, func(t *testing.T) { testWire(t, newWireOf(t, kind)) })
	}
}

func testWire(t *testing.T, w *fakeWire) {
	a, b := w.plug(), w.plug()
	var l net.Listener
	var err error
	b.in(func() { l, err = net.Listen("tcp", b.addr("0")) })
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	got := make(chan []byte)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			data, _ := io.ReadAll(c)
			c.Close()
			got <- data
		}
	}()
	send := func() []byte {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		c, err := a.dial(ctx, "tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = c.Write(make([]byte, 100000))
		c.Close()
		return <-got
	}
	if data := send(); len(data) != 100000 {
		t.Fatalf("%d bytes came", len(data))
	}
	w.between([]*port{a}, []*port{b}, false, func(r *rule) { r.flip, r.Delay = 1, 5*time.Millisecond })
	began, wrong := time.Now(), 0
	for _, x := range send() {
		if x != 0 {
			wrong++
		}
	}
	if _, _, flipped := w.sum(); wrong == 0 || wrong > flipped {
		t.Errorf("%d bytes were changed, %d were to be", wrong, flipped)
	}
	if took := time.Since(began); took < 10*time.Millisecond {
		t.Errorf("a delayed connection took %v", took)
	}
	w.heal()
	w.between([]*port{a}, []*port{b}, false, func(r *rule) { r.short, r.most = 1, 1 })
	if data := send(); len(data) == 0 || len(data) >= 100000 {
		t.Errorf("%d bytes came over a connection that was cut short", len(data))
	}
	w.heal()
	w.between([]*port{b}, []*port{a}, false, func(r *rule) { r.Settings.Cut = true })
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	if c, err := a.dial(ctx, "tcp", l.Addr().String()); err == nil {
		c.Close()
		t.Error("a connection was made over a cut wire")
	}
	w.heal()
	if data := send(); len(data) != 100000 {
		t.Errorf("%d bytes came after it was healed", len(data))
	}
}
