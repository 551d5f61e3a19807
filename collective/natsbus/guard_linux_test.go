package natsbus

import (
	"io"
	"net"
	"testing"
	"time"
)

// TestGuardEndsPendingConns: of the connections that have not logged in, only the newest stay, counted
// over both listeners. Clients and routes that have logged in stay.
func TestGuardEndsPendingConns(t *testing.T) {
	a, err := Start(Config{Name: "a", Secret: "s", Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Shutdown()
	b, err := Start(Config{Name: "b", Secret: "s", Seeds: []string{a.RouteAddr()}, Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Shutdown()
	own, err := a.Connect("test")
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	waitFor(t, "a route", func() bool { return len(a.Peers()) > 0 })

	const most = 4
	w, err := newWatcher(a.ns, most)
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	var idle []net.Conn
	for i := range 40 {
		at := a.Addr().String()
		if i%2 == 1 {
			at = a.RouteAddr()
		}
		c, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		// The server's greeting, or the deadline of a route that has sent nothing.
		_ = c.SetReadDeadline(time.Now().Add(patience))
		if _, err := c.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		idle = append(idle, c)
		w.shed(time.Now())
	}
	open := 0
	for i, c := range idle {
		_ = c.SetReadDeadline(time.Now().Add(time.Second))
		_, err := io.Copy(io.Discard, c)
		timeout, ok := err.(net.Error)
		still := ok && timeout.Timeout()
		if still {
			open++
		}
		if want := i >= len(idle)-most; still != want {
			t.Errorf("connection %d of %d: open=%v, want %v (%v)", i, len(idle), still, want, err)
		}
	}
	t.Logf("%d of %d are open", open, len(idle))
	if err := own.FlushTimeout(patience); err != nil {
		t.Errorf("the own client: %v", err)
	}
	if len(a.Peers()) != 1 {
		t.Errorf("the route is gone: %v", a.Peers())
	}
}
