package httpserver

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/shoal-llm/shoal/internal/lograte"
	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/jsonbody"
	"github.com/shoal-llm/shoal/internal/sys/openfiles"
	"github.com/shoal-llm/shoal/internal/tracing"
)

// Config of an HTTP server. Limits must be filled.
type Config struct {
	Keys         []Key        // guard every route that is not public; none: requests need no key
	Audit        *slog.Logger // nil: none
	TLS          *tls.Config  // nil: plain
	AllowOrigins []string     // whose web pages may use the API besides the server's own
	Limits       jsonbody.Limits
	Grace        time.Duration // for running requests after Serve's context has ended
	Tracer       *tracing.Tracer
	Logger       *slog.Logger
	Observe      func(route string, status int) // counts answers
}

// Server checks keys and limits, answers the routes of a table, and logs requests.
type Server struct {
	cfg      Config
	log      *slog.Logger
	keys     atomic.Pointer[keyring]
	audit    *audit
	refused  lograte.Limiter // lines of the access log
	working  atomic.Int64    // requests that handlers have, except on brief routes
	bodies   *bodyBudget
	routes   []Route
	draining atomic.Bool
	stopping chan struct{} // closed when Serve begins to drain
}

// New makes a server without routes.
func New(cfg Config) (*Server, error) {
	s := &Server{cfg: cfg, log: cfg.Logger, stopping: make(chan struct{}), audit: &audit{log: cfg.Audit},
		bodies: &bodyBudget{total: cfg.Limits.BodiesBytes, perKey: cfg.Limits.KeyBodiesBytes, byKey: map[string]int64{}}}
	s.keys.Store(&keyring{})
	if err := s.SetKeys(cfg.Keys); err != nil {
		return nil, err
	}
	s.cfg.Keys = nil
	return s, nil
}

// Stopping is closed when Serve begins to drain: streams that a client can take
// up again later should end now.
func (s *Server) Stopping() <-chan struct{} { return s.stopping }

// Draining reports whether Serve's context has ended.
func (s *Server) Draining() bool { return s.draining.Load() }

// Serve answers on l until ctx ends. Then it refuses new work with 503, lets running
// requests finish for Config.Grace, ends the rest with an error event, and
// returns. It closes l. It must be called once.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	base, kill := context.WithCancelCause(context.WithoutCancel(ctx))
	defer kill(nil)
	lim := s.cfg.Limits
	files, open := openfiles.Count()
	conns := newConnections(l, connectionLimit(lim.Connections, files, open))
	srv := &http.Server{
		Handler:           s.Handler(),
		BaseContext:       func(net.Listener) context.Context { return base },
		ConnContext:       conns.context,
		ConnState:         conns.state,
		ReadHeaderTimeout: lim.ReadHeaderTimeout,
		IdleTimeout:       lim.IdleTimeout,
		MaxHeaderBytes:    lim.HeaderBytes,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
	}
	failed := make(chan error, 1)
	var at net.Listener = conns
	if s.cfg.TLS != nil {
		at = tls.NewListener(conns, s.cfg.TLS)
	}
	go func() { failed <- srv.Serve(at) }()
	select {
	case err := <-failed:
		return fmt.Errorf("httpserver: serve: %w", err)
	case <-ctx.Done():
	}
	s.draining.Store(true)
	close(s.stopping)
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.Grace)
	defer cancel()
	s.awaitWork(grace)
	err := srv.Shutdown(grace)
	if err != nil { // some requests still run: cancel them, and give them a moment to write their errors
		kill(apierr.ErrShutdown)
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		err = srv.Shutdown(last)
		_ = srv.Close()
	}
	if e := <-failed; err == nil && !errors.Is(e, http.ErrServerClosed) {
		err = e
	}
	if err != nil {
		return fmt.Errorf("httpserver: drain: the remaining connections were closed after %v: %w", s.cfg.Grace, err)
	}
	return nil
}

// awaitWork returns when every request has its answer. Until then the server still listens, so
// that new work gets a 503 with the reason, not a refused connection.
func (s *Server) awaitWork(ctx context.Context) {
	t := time.NewTicker(10 * time.Millisecond)
	defer t.Stop()
	for s.working.Load() > 0 {
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
	}
}
