// Package natstest starts NATS servers for tests.
package natstest

import (
	"log/slog"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/shoal-llm/shoal/collective/natsbus"
)

// Alone starts a server without peers, which stores its streams in a folder, and connects to it. stop stops
// the server. It may be called twice, and runs at the end of the test.
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
