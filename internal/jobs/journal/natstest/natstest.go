// Package natstest starts NATS servers for tests.
package natstest

import (
	"log/slog"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/shoal-llm/shoal/collective/natsbus"
)

// Alone starts a server without peers and connects to it. The server stores at most this number of bytes of
// streams in dir. stop stops the server; it may be called twice, and runs at the end of the test.
func Alone(t testing.TB, dir string, bytes int64) (nc *nats.Conn, stop func()) {
	t.Helper()
	s, err := natsbus.Start(natsbus.Config{Name: "jobs", Cluster: "jobs", Alone: true, StoreDir: dir, StoreBytes: bytes,
		SyncAlways: true, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	stop = sync.OnceFunc(s.Shutdown)
	t.Cleanup(stop)
	if nc, err = s.Connect("test"); err != nil {
		t.Fatal(err)
	}
	return nc, stop
}
