package natsbus

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/shoal-llm/shoal/internal/sys/fixedport"
)

// TestStoreMemberReplaced: one of three servers is lost permanently. Its replacement gets the messages
// and counts as a member, so the store survives the loss of one more of the first three. If the lost
// server returns, it is not a member.
func TestStoreMemberReplaced(t *testing.T) {
	servers := startStores(t)
	nc, err := servers[0].Connect("jobs")
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	cfg := jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}, Storage: jetstream.FileStorage, Replicas: 3}
	put := func(n int) {
		t.Helper()
		for range n {
			asked(t, "a message", func(ctx context.Context) error {
				_, err := js.Publish(ctx, "s", make([]byte, 1000))
				return err
			})
		}
	}
	asked(t, "a stream", func(ctx context.Context) error { _, err := js.CreateStream(ctx, cfg); return err })
	put(5)
	lost := servers[2].cfg
	servers[2].Shutdown()
	put(5)
	asked(t, "a member removed", func(ctx context.Context) error {
		return servers[0].RetainStoreMembers(ctx, []string{"node-0", "node-1"})
	})
	members(t, servers[0], "node-0", "node-1")
	asked(t, "a stream of three with two servers", func(ctx context.Context) error { _, err := js.CreateOrUpdateStream(ctx, cfg); return err })
	put(5)

	l, err := fixedport.Listen("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().String()
	l.Close()
	began := time.Now()
	further, err := Start(Config{Name: "node-3", Secret: "s3", Log: quiet, HungAfter: patience,
		StoreDir: t.TempDir(), Listen: at, Seeds: []string{servers[0].RouteAddr(), servers[1].RouteAddr(), at}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(further.Shutdown)
	copies := func(want ...string) {
		t.Helper()
		asked(t, fmt.Sprintf("copies at %v", want), func(ctx context.Context) error {
			s, err := js.Stream(ctx, "S")
			if err != nil {
				return err
			}
			info, err := s.Info(ctx)
			if err != nil {
				return err
			}
			have := []string{info.Cluster.Leader}
			for _, p := range info.Cluster.Replicas {
				if p.Current && !p.Offline {
					have = append(have, p.Name)
				}
			}
			slices.Sort(have)
			if !slices.Equal(have, want) {
				return fmt.Errorf("copies at %v", have)
			}
			return nil
		})
	}
	copies("node-0", "node-1", "node-3")
	t.Logf("replaced after %v", time.Since(began))
	members(t, servers[0], "node-0", "node-1", "node-3")

	back, err := Start(lost)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(back.Shutdown)
	waitFor(t, "routes to the one that is back", func() bool { return slices.Contains(servers[0].Peers(), lost.Name) })
	asked(t, "members that stay", func(ctx context.Context) error {
		return servers[0].RetainStoreMembers(ctx, []string{"node-0", "node-1", "node-3"})
	})
	members(t, servers[0], "node-0", "node-1", "node-3")
	back.Shutdown()
	servers[1].Shutdown()
	put(5)
}

// members waits until the store consists of these servers.
func members(t *testing.T, s *Server, want ...string) {
	t.Helper()
	waitFor(t, fmt.Sprintf("members %v", want), func() bool {
		n, others, err := s.StoreMembers(want)
		return err == nil && n == len(want) && len(others) == 0
	})
}
