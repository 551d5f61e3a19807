package journal

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/collective/natsbus"
	"github.com/shoal-llm/shoal/internal/sys/fixedport"
	"github.com/shoal-llm/shoal/internal/testutil"
)

// patience is the deadline of every wait; it allows for a heavily loaded machine.
const patience = 2 * time.Minute

// succeeds repeats ask until it succeeds.
func succeeds(t *testing.T, what string, ask func(context.Context) error) {
	t.Helper()
	testutil.Eventually(t, patience, what, func() (bool, string) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		err := ask(ctx)
		return err == nil, fmt.Sprint(err)
	})
}

// TestInProcess: a leader without a majority is still processing an append. No other process has
// written, so the refusal of the next append is not a conflict, which would make the writer give
// up.
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
	open := func(at string) (l *jetLog) {
		t.Helper()
		nc, err := servers[at].Connect("jobs")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		succeeds(t, "a stream of three replicas", func(ctx context.Context) error {
			made, err := OpenJetStream(ctx, nc, 1<<20, 3)
			if err == nil {
				l = made.(*jetLog)
			}
			return err
		})
		return l
	}
	l, leader := open("r0"), ""
	succeeds(t, "a leader", func(ctx context.Context) error {
		info, err := l.stream.Info(ctx)
		if err == nil {
			leader = info.Cluster.Leader
		}
		if err == nil && leader == "" {
			err = errors.New("no leader")
		}
		return err
	})
	l = open(leader) // the other servers are down and cannot answer
	for name, s := range servers {
		if name != leader {
			s.Shutdown()
		}
	}
	for i, limit := range []time.Duration{500 * time.Millisecond, patience} {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		_, err := l.Append(ctx, "b", 0, []byte("alone"))
		cancel()
		if err == nil || errors.Is(err, ErrConflict) {
			t.Errorf("append %d without a majority: %v, which is not a conflict", i, err)
		}
		if i == 1 && !strings.Contains(err.Error(), "under way") {
			t.Errorf("the second append to a journal: %v", err)
		}
	}
}
