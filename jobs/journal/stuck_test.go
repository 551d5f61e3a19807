package journal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"shoal/collective/natsbus"
	"shoal/internal/fixedport"
)

const patience = time.Minute

// until asks again until there is no error.
func until(t *testing.T, what string, ask func(context.Context) error) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		err := ask(ctx)
		cancel()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: not within %v: %v", what, patience, err)
		}
	}
}

// TestInProcess: a leader without its majority holds an append to be under way. Nobody else
// has written, so that is no conflict, on which a writer would give up. A leader that says
// so for too long is asked to step down.
func TestInProcess(t *testing.T) {
	var addrs []string
	for range 3 {
		at, err := fixedport.Listen("127.0.0.1")
		if err != nil {
			t.Fatal(err)
		}
		addrs = append(addrs, at.Addr().String())
		_ = at.Close()
	}
	servers := map[string]*natsbus.Server{}
	for i, at := range addrs {
		name := fmt.Sprintf("r%d", i)
		s, err := natsbus.Start(natsbus.Config{Name: name, Cluster: "store", Listen: at, Seeds: addrs, StoreDir: t.TempDir(), Log: quiet})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Shutdown)
		servers[name] = s
	}
	said := &bytes.Buffer{}
	open := func(at string) (l *jetLog) {
		t.Helper()
		nc, err := servers[at].Connect("jobs")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		until(t, "a stream of three replicas", func(ctx context.Context) error {
			made, err := OpenJetStream(ctx, nc, 1<<20, 3, slog.New(slog.NewTextHandler(said, nil)))
			if err == nil {
				l = made.(*jetLog)
			}
			return err
		})
		return l
	}
	l := open("r0")
	leader := func() (name string) {
		t.Helper()
		until(t, "a leader", func(ctx context.Context) error {
			info, err := l.stream.Info(ctx)
			if err == nil && info.Cluster.Leader == "" {
				err = errors.New("nobody leads")
			}
			if err == nil {
				name = info.Cluster.Leader
			}
			return err
		})
		return name
	}
	was := leader()
	refusal := fmt.Errorf("publish: %w", &jetstream.APIError{ErrorCode: jetstream.JSErrCodeStreamWrongLastSequenceConstant})
	l.busy.Is(t.Context(), "a", refusal)
	if said.Len() > 0 {
		t.Errorf("at the first refusal: %s", said)
	}
	l.busy.since["a"] = time.Now().Add(-2 * stuckAfter)
	l.busy.Is(t.Context(), "a", refusal)
	if text := said.String(); !strings.Contains(text, "asked to step down") || strings.Contains(text, "error=jobs") {
		t.Errorf("after a while of refusals: %q", text)
	}
	until(t, "another leader", func(context.Context) error {
		if leader() == was {
			return errors.New("it leads still")
		}
		return nil
	})

	was = leader()
	l = open(was) // else nobody is there to ask
	for name, s := range servers {
		if name != was {
			s.Shutdown()
		}
	}
	until(t, "no majority", func(ctx context.Context) error {
		if l.busy.majority(ctx) {
			return errors.New("the others are heard still")
		}
		return nil
	})
	said.Reset()
	l.busy.since["a"] = time.Now().Add(-2 * stuckAfter)
	if l.busy.Is(t.Context(), "a", refusal); said.Len() > 0 || len(l.busy.since) > 0 {
		t.Errorf("without a majority: %s", said)
	}
	for i, limit := range []time.Duration{500 * time.Millisecond, patience} {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		_, err := l.Append(ctx, "b", 0, []byte("alone"))
		cancel()
		if err == nil || errors.Is(err, ErrConflict) {
			t.Errorf("append %d without a majority: %v, which is no conflict", i, err)
		}
		if i == 1 && !strings.Contains(err.Error(), "under way") {
			t.Errorf("the second append to a journal: %v", err)
		}
	}
}
