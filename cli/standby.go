package cli

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// doorman answers at the API's address while this process is a standby: who
// coordinates, and 503 to everything else.
type doorman struct {
	srv  *http.Server
	l    *shared
	done chan struct{}
	why  atomic.Pointer[string]
}

// newDoorman answers at l. Bodies, which nobody reads, have the time limit to come.
func newDoorman(l net.Listener, limit time.Duration) *doorman {
	d := &doorman{l: &shared{Listener: l}, done: make(chan struct{})}
	d.say("starting")
	d.srv = &http.Server{Handler: d, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: limit, IdleTimeout: 30 * time.Second, MaxHeaderBytes: 1 << 14}
	go func() {
		defer close(d.done)
		_ = d.srv.Serve(d.l)
	}()
	return d
}

func (d *doorman) say(why string) { d.why.Store(&why) }

// ServeHTTP implements http.Handler.
func (d *doorman) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if r.URL.Path == "/health" { // the process is well, and no place for requests
		_, _ = w.Write([]byte(`{"status":"standby"}`))
		return
	}
	w.Header().Set("Retry-After", "1")
	w.WriteHeader(http.StatusServiceUnavailable)
	_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{"message": "This coordinator is a standby: " + *d.why.Load() + ".",
		"type": "server_error", "param": nil, "code": "standby"}})
}

// leave gives the listener back, open.
func (d *doorman) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if d.srv.Shutdown(ctx) != nil {
		_ = d.srv.Close()
	}
	<-d.done
	d.l.again()
}

// shared is a listener that outlives a server: closing it only ends Accept.
type shared struct{ net.Listener }

type deadliner interface{ SetDeadline(time.Time) error }

func (s *shared) Close() error {
	if d, ok := s.Listener.(deadliner); ok {
		return d.SetDeadline(time.Unix(1, 0))
	}
	return nil
}

func (s *shared) again() {
	if d, ok := s.Listener.(deadliner); ok {
		_ = d.SetDeadline(time.Time{})
	}
}
