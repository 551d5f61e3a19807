package natsbus

import (
	"fmt"
	"strings"

	"github.com/nats-io/nats-server/v2/server"
)

// broken reports whether a log line means that JetStream has stopped writing. JetStream keeps its
// first write error (a full disk) for the rest of its life and shows no other sign of it.
func broken(format string) bool {
	return strings.Contains(strings.ToLower(format), "critical write error") || strings.Contains(format, "failed to store a msg") ||
		strings.Contains(format, "out of resources") || strings.Contains(format, "resources, will be DISABLED") ||
		strings.Contains(format, "permission denied while writing")
}

// Broken returns why JetStream has stopped writing, or "". Only RestartJetStream clears it.
func (s *Server) Broken() string {
	if why := s.broken.Load(); why != nil {
		return *why
	}
	return ""
}

// RestartJetStream starts JetStream again over its files, in the same server. Connections and routes stay;
// requests get no answer meanwhile. All acknowledged messages are kept. It has no effect while the disk is
// full.
func (s *Server) RestartJetStream() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.ns == nil || s.cfg.StoreDir == "" {
		return fmt.Errorf("%w: no JetStream to restart", ErrClosed)
	}
	if err := s.ns.ShutdownJetStream(); err != nil {
		return fmt.Errorf("natsbus: stop JetStream of %s: %w", s.cfg.Name, err)
	}
	s.broken.Store(nil) // later errors are of the new JetStream
	o := s.options(s.seeds)
	if err := s.ns.EnableJetStream(&server.JetStreamConfig{StoreDir: o.StoreDir, SyncAlways: o.SyncAlways, MaxMemory: o.JetStreamMaxMemory,
		MaxStore: o.JetStreamMaxStore, Strict: true}); err != nil {
		why := err.Error()
		s.broken.CompareAndSwap(nil, &why)
		return fmt.Errorf("natsbus: start JetStream of %s again: %w", s.cfg.Name, err)
	}
	return nil
}
