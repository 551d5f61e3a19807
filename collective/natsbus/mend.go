package natsbus

import (
	"fmt"
	"strings"

	"github.com/nats-io/nats-server/v2/server"
)

// broken tells that a line of the server's log says that JetStream writes no more: it
// keeps the first error of a write (a full disk) for as long as it runs, and has no other
// sign of it.
func broken(format string) bool {
	return strings.Contains(strings.ToLower(format), "critical write error") || strings.Contains(format, "failed to store a msg") ||
		strings.Contains(format, "out of resources") || strings.Contains(format, "resources, will be DISABLED") || strings.Contains(format, "permission denied while writing")
}

// Broken says why JetStream writes no more, which only Mend changes; empty: it writes.
func (s *Server) Broken() string {
	if why := s.broken.Load(); why != nil {
		return *why
	}
	return ""
}

// Mend starts JetStream again over what is on disk, in the same server: connections and
// routes stay, requests meanwhile have no answer. Everything that was acknowledged is
// there. Before there is space it makes things no better.
func (s *Server) Mend() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.ns == nil || s.cfg.StoreDir == "" {
		return fmt.Errorf("%w: no JetStream to mend", ErrClosed)
	}
	if err := s.ns.ShutdownJetStream(); err != nil {
		return fmt.Errorf("natsbus: stop JetStream of %s: %w", s.cfg.Name, err)
	}
	s.broken.Store(nil) // what it says from here on is of the new one
	o := s.options(s.seeds)
	if err := s.ns.EnableJetStream(&server.JetStreamConfig{StoreDir: o.StoreDir, SyncAlways: o.SyncAlways, MaxMemory: o.JetStreamMaxMemory, MaxStore: o.JetStreamMaxStore, Strict: true}); err != nil {
		why := err.Error()
		s.broken.CompareAndSwap(nil, &why)
		return fmt.Errorf("natsbus: start JetStream of %s again: %w", s.cfg.Name, err)
	}
	return nil
}
