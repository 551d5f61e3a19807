package launch

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/shoal-llm/shoal/cluster"
)

// notReadyServer answers at the address of the API while this process does not coordinate: it is
// a standby, or its store lacks replicas. It answers 503 with the reason.
type notReadyServer struct {
	srv     *http.Server
	l       *reusableListener
	standby bool
	done    chan struct{}
	reason  atomic.Pointer[string]
}

// startCoordinatorAt starts a coordinator that will serve at l. While it waits, a notReadyServer
// reports the reason at l. If l is shared with another coordinator, it is left to that one, and
// connections wait in the kernel's queue. The notReadyServer uses it only if no process
// coordinates.
func startCoordinatorAt(ctx context.Context, cfg cluster.CoordinatorConfig, l net.Listener, shared bool,
	settings *apiSettings) (*cluster.Coordinator, error) {
	var d *notReadyServer
	set := func(open bool) {
		switch {
		case open && d == nil:
			d = newNotReadyServer(l, cfg.Standby && !shared, 5*time.Second, settings.tls())
		case !open && d != nil:
			d.handOver()
			d = nil
		}
	}
	if l != nil {
		set(cfg.Standby && !shared)
		cfg.Waits = func(reason string, alone bool) {
			set(alone || !shared)
			if d != nil {
				d.setReason(reason)
			}
		}
	}
	co, err := cluster.StartCoordinator(ctx, cfg)
	set(false)
	return co, err
}

// newNotReadyServer starts to answer at l. It does not read bodies; limit is the time for a
// client to send one.
func newNotReadyServer(l net.Listener, standby bool, limit time.Duration, secure *tls.Config) *notReadyServer {
	d := &notReadyServer{l: &reusableListener{Listener: l}, standby: standby, done: make(chan struct{})}
	d.setReason("starting")
	d.srv = &http.Server{Handler: d, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: limit,
		IdleTimeout: 30 * time.Second, MaxHeaderBytes: 1 << 14}
	at := net.Listener(d.l)
	if secure != nil {
		at = tls.NewListener(at, secure)
	}
	go func() {
		defer close(d.done)
		_ = d.srv.Serve(at)
	}()
	return d
}

func (d *notReadyServer) setReason(reason string) { d.reason.Store(&reason) }

func (d *notReadyServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	reason, what, code := *d.reason.Load(), "does not serve yet", "store_unavailable"
	w.Header().Set("Content-Type", "application/json")
	if d.standby {
		if r.URL.Path == "/health" { // the process is healthy, but serves no requests
			_, _ = w.Write([]byte(`{"status":"standby"}`))
			return
		}
		what, code = "is a standby", "standby"
	}
	w.Header().Set("Retry-After", "1")
	w.WriteHeader(http.StatusServiceUnavailable)
	var answer any = map[string]any{"error": map[string]any{"message": "This coordinator " + what + ": " + reason + ".",
		"type": "server_error", "param": nil, "code": code}}
	if r.URL.Path == "/health" || r.URL.Path == "/ready" {
		answer = map[string]string{"status": map[string]string{"/health": "unhealthy", "/ready": "not_ready"}[r.URL.Path], "reason": reason}
	}
	_ = json.NewEncoder(w).Encode(answer)
}

// handOver stops the server and leaves the listener open.
func (d *notReadyServer) handOver() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if d.srv.Shutdown(ctx) != nil {
		_ = d.srv.Close()
	}
	<-d.done
	d.l.resume()
}

// reusableListener is a listener that outlives a server: Close only ends Accept.
type reusableListener struct{ net.Listener }

type deadliner interface{ SetDeadline(time.Time) error }

func (s *reusableListener) Close() error {
	if d, ok := s.Listener.(deadliner); ok {
		return d.SetDeadline(time.Unix(1, 0))
	}
	return nil
}

func (s *reusableListener) resume() {
	if d, ok := s.Listener.(deadliner); ok {
		_ = d.SetDeadline(time.Time{})
	}
}
