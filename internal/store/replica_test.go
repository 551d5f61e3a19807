package store

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/hostname"
	"github.com/shoal-llm/shoal/internal/security"
	"github.com/shoal-llm/shoal/internal/sys/fixedport"
)

// TestReplicaHoldsItsAddress: the offered address is reserved until the store is formed, and free
// once the process has left.
func TestReplicaHoldsItsAddress(t *testing.T) {
	r, err := openReplica(t.Context(), t.TempDir(), "a", hostname.Place{Bind: "127.0.0.1:0"},
		security.RoleNode, security.Key{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if l, err := net.Listen("tcp", r.addr); err == nil {
		l.Close()
		t.Errorf("%s was free", r.addr)
	}
	r.close()
	l, err := net.Listen("tcp", r.addr)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
}

// logged records log output and signals each write.
type logged struct {
	mu sync.Mutex
	b  bytes.Buffer
	to chan struct{}
}

func (s *logged) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case s.to <- struct{}{}:
	default:
	}
	return s.b.Write(b)
}

func (s *logged) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// TestReplicaWaitsForItsPort: another process uses the port when a member returns. The member logs that
// and waits. After the deadline its error has advice for the user.
func TestReplicaWaitsForItsPort(t *testing.T) {
	taken, err := fixedport.Listen("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	at := taken.Addr().String()
	dir, log := t.TempDir(), &logged{to: make(chan struct{}, 1)}
	open := func(ctx context.Context) (*replica, error) {
		return openReplica(ctx, dir, "a", hostname.Place{Bind: "127.0.0.1:0"}, security.RoleNode,
			security.Key{}, slog.New(slog.NewTextHandler(log, nil)))
	}
	p := &plan{ID: "x", Self: "a", Members: []member{{Name: "a", Route: at}, {Name: "b", Route: "127.0.0.1:1"}}}
	if err := (&replica{dir: dir}).write(p); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err = open(ctx)
	for _, want := range []string{at, "ss -ltnp", "shoal store remove a", "in use"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("on a port that is taken: %v; want %q in it", err, want)
		}
	}
	if op := (*net.OpError)(nil); !errors.As(err, &op) {
		t.Errorf("%v hides the error of listening", err)
	}
	if text := log.String(); strings.Count(text, "waiting for the port") != 1 || !strings.Contains(text, at) {
		t.Errorf("while it waited the log had %q", text)
	}

	log.to = make(chan struct{}, 1)
	go func() {
		<-log.to // it is waiting
		taken.Close()
	}()
	r, err := open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	if _, bus := r.now(); bus.RouteAddr() != at {
		t.Errorf("its routes are at %s, want %s", bus.RouteAddr(), at)
	}
}
