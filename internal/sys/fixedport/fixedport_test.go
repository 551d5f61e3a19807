package fixedport

import (
	"net"
	"testing"
)

// TestListen: no port is in the ephemeral range.
func TestListen(t *testing.T) {
	low, high := ephemeral()
	if first, end := outside(low, high); first <= high && low < end {
		t.Skipf("this system hands out nearly every port, %d to %d", low, high)
	}
	for range 50 {
		l, err := Listen("127.0.0.1")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if port := l.Addr().(*net.TCPAddr).Port; port >= low && port <= high {
			t.Errorf("port %d, and the system hands out %d to %d", port, low, high)
		}
	}
	if l, err := Listen("203.0.113.9"); err == nil {
		l.Close()
		t.Error("listens at an address that is not of this machine")
	}
}

func TestOutside(t *testing.T) {
	for _, c := range []struct{ low, high, first, end int }{
		{32768, 60999, 10000, 32768}, // Linux
		{49152, 65535, 10000, 49152}, // macOS, Windows
		{15000, 64000, 10000, 15000},
		{10000, 60999, 61000, 65536}, // no room below
		{1024, 9000, 10000, 65536},
		{1024, 65535, 10000, 32768}, // no room at all
	} {
		if first, end := outside(c.low, c.high); first != c.first || end != c.end {
			t.Errorf("outside %d to %d: %d to %d, want %d to %d", c.low, c.high, first, end, c.first, c.end)
		}
	}
}
