package journal

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/collective/natsbus"
	"github.com/shoal-llm/shoal/internal/sys/fixedport"
	"github.com/shoal-llm/shoal/internal/testutil"
)

// TestFollowOutlivesItsServer: the server that Follow reads from, one of three, dies. Later
// messages arrive within seconds.
func TestFollowOutlivesItsServer(t *testing.T) {
	if testing.Short() {
		t.Skip("forms a replicated log")
	}
	servers := three(t)
	nc, err := servers["node-0"].Connect("jobs")
	if err != nil {
		t.Fatal(err)
	}
	log, err := OpenJetStream(t.Context(), nc, 1<<20, 3)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	stream := log.(*jetLog).stream
	for {
		ctx, stop := context.WithCancel(t.Context())
		var received atomic.Uint64
		done := make(chan error, 1)
		go func() { done <- log.Follow(ctx, 0, func(_ string, seq uint64) { received.Store(seq) }) }()
		from := ""
		testutil.Eventually(t, patience, "a server that is followed", func() (bool, string) {
			for c := range stream.ListConsumers(t.Context()).Info() {
				from = c.Cluster.Leader
			}
			return from != "", ""
		})
		if from == "node-0" { // placement is random, and this server must survive
			stop()
			<-done
			testutil.Eventually(t, patience, "the end of a follower", func() (bool, string) {
				for c := range stream.ListConsumers(t.Context()).Info() {
					_ = stream.DeleteConsumer(t.Context(), c.Name)
				}
				return true, ""
			})
			continue
		}
		servers[from].Shutdown()
		began, seq := time.Now(), uint64(0)
		testutil.Eventually(t, patience, "a message is appended", func() (bool, string) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			seq, err = log.Append(ctx, fmt.Sprint("a", time.Now().UnixNano()), 0, []byte("x"))
			return err == nil, fmt.Sprint(err)
		})
		written := time.Since(began)
		testutil.Eventually(t, patience, "the follower receives the message", func() (bool, string) {
			return received.Load() >= seq, fmt.Sprintf("received %d, want %d", received.Load(), seq)
		})
		took := time.Since(began)
		t.Logf("written after %v, received after %v", written, took)
		if took > written+9*followBeat { // with the interval of the library: 10 s
			t.Error("received too late")
		}
		stop()
		<-done
		return
	}
}

// three starts the servers of a replicated log and returns them by name.
func three(t *testing.T) map[string]*natsbus.Server {
	t.Helper()
	var addrs []string
	var free []net.Listener
	for range 3 {
		l, err := fixedport.Listen("127.0.0.1")
		if err != nil {
			t.Fatal(err)
		}
		addrs, free = append(addrs, l.Addr().String()), append(free, l)
	}
	servers := map[string]*natsbus.Server{}
	for i, at := range addrs {
		free[i].Close()
		name := fmt.Sprintf("node-%d", i)
		s, err := natsbus.Start(natsbus.Config{Name: name, Cluster: "jobs", Log: quiet, StoreDir: t.TempDir(),
			SyncAlways: true, Listen: at, Seeds: addrs})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Shutdown)
		servers[name] = s
	}
	return servers
}
