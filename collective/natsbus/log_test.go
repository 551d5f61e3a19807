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

// TestStrangersAreLoggedSeldom: failed logins produce a few debug lines, not one line each.
func TestStrangersAreLoggedSeldom(t *testing.T) {
	var out lineCounter
	s, err := Start(Config{Name: "a", Secret: "s3", Log: slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))})
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
		for buf := make([]byte, 4096); ; { // until it is refused
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

// TestLevelOf: errors of one connection are debug records, errors of the server are warnings.
func TestLevelOf(t *testing.T) {
	for format, want := range map[string]slog.Level{
		"127.0.0.1:40000 - rid:5 - TLS route handshake error: %v":    slog.LevelDebug,
		"127.0.0.1:40000 - cid:17 - authentication error":            slog.LevelDebug,
		"Error trying to connect to route (attempt %v): %v":          slog.LevelDebug,
		"JetStream failed to store a msg on stream '%s > %s': %v":    slog.LevelWarn,
		"Error creating a snapshot for 127.0.0.1 - no connection %v": slog.LevelWarn,
	} {
		if got := levelOf(format); got != want {
			t.Errorf("%q has level %v, want %v", format, got, want)
		}
	}
}
