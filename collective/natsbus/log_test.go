package natsbus

import (
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"time"
)

type lineCounter struct{ n atomic.Int64 }

func (l *lineCounter) Write(b []byte) (int, error) {
	l.n.Add(1)
	return len(b), nil
}

// TestStrangersAreLoggedSeldom: logins that fail say so a few times, not each time.
func TestStrangersAreLoggedSeldom(t *testing.T) {
	var out lineCounter
	s, err := Start(Config{Name: "a", Secret: "s3", Log: slog.New(slog.NewTextHandler(&out, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Shutdown()
	before := out.n.Load()
	const strangers = 200
	for range strangers {
		c, err := net.Dial("tcp", s.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(patience))
		fmt.Fprintf(c, "CONNECT {\"auth_token\":\"guess\",\"verbose\":false}\r\nPING\r\n")
		for buf := make([]byte, 4096); ; { // until it is turned away
			if _, err := c.Read(buf); err != nil {
				break
			}
		}
		c.Close()
	}
	if got := out.n.Load() - before; got == 0 || got > strangers/4 {
		t.Errorf("%d logins that failed made %d lines", strangers, got)
	}
}
