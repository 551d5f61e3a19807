package gossip

import (
	"crypto/rand"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"time"

	mrand "math/rand/v2"
)

// TestGarbageIsLoggedSeldom: a sender of invalid packets cannot fill the disk with log lines.
func TestGarbageIsLoggedSeldom(t *testing.T) {
	var out lineCounter
	n, err := Start(Config{Name: "a", Bind: "127.0.0.1:0", Keys: [][]byte{key.Gossip()}, Profile: Local,
		Logger: slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})), Meta: Meta{Role: "node", Incarnation: 1}})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	c, err := net.Dial("udp", n.Address())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	const sent = 5000
	for i := range sent {
		b := make([]byte, 1+mrand.IntN(200))
		_, _ = rand.Read(b)
		_, _ = c.Write(b)
		if i%100 == 0 {
			time.Sleep(time.Millisecond) // spread them, or the kernel would drop some
		}
	}
	for end := time.Now().Add(10 * time.Second); out.n.Load() < 10 && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	time.Sleep(200 * time.Millisecond)
	if got := out.n.Load(); got < 5 || got > sent/20 {
		t.Errorf("%d datagrams of garbage made %d lines", sent, got)
	}
}

type lineCounter struct{ n atomic.Int64 }

func (l *lineCounter) Write(b []byte) (int, error) {
	l.n.Add(1)
	return len(b), nil
}
