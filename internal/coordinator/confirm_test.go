package coordinator

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/shoal-llm/shoal/internal/gossip"
	"github.com/shoal-llm/shoal/internal/node"
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/internal/rpc"
)

// startAs starts a process that describes itself as a node. With hold it takes requests and answers none.
func startAs(t *testing.T, id, describes string, incarnation uint64, hold bool) *rpc.System {
	t.Helper()
	s, err := rpc.Start(rpc.Config{ID: id, Bind: "127.0.0.1:0", Incarnation: incarnation, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	mux := rpc.NewMux(s)
	rpc.Handle(mux, uint32(proto.Kind_KIND_DESCRIBE), func(c *rpc.Ctx, _ *proto.Empty) {
		if !hold {
			_ = c.Reply(&proto.NodeDescription{Id: describes, Incarnation: incarnation})
		}
	})
	if _, err := s.Spawn(node.SocketName, actor.PropsFromFunc(func(c actor.Context) { mux.Receive(c) })); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestQuestion: only the lost process itself confirms that it is alive, and the question ends with its deadline.
func TestQuestion(t *testing.T) {
	asker := startAs(t, "coordinator", "coordinator", 1, false)
	dead := startAs(t, "gone", "gone", 7, false)
	if err := dead.Close(); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		at   *rpc.System
		want answer
	}{
		"the process":         {startAs(t, "n1", "n1", 7, false), alive},
		"a later run of it":   {startAs(t, "n1", "n1", 8, false), replaced},
		"another node":        {startAs(t, "n2", "n2", 7, false), replaced},
		"nothing":             {dead, silent},
		"one that is hanging": {startAs(t, "n1", "n1", 7, true), silent},
	} {
		t.Run(name, func(t *testing.T) {
			m := gossip.Member{Name: "n1", Meta: gossip.Meta{RPC: c.at.Address(), Incarnation: 7}}
			limit := 20 * time.Second
			if c.want == silent {
				limit = probeLimit
			}
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			if got, err := question(ctx, asker, &m); got != c.want {
				t.Errorf("%v (%v), want %v", got, err, c.want)
			}
		})
	}
}

// TestQueryKinds: a member is confirmed while it is describing itself, and no query runs twice at once.
func TestQueryKinds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	d := &Discoverer{ctx: ctx, cancel: cancel, querying: map[queryKey]bool{}}
	var mu sync.Mutex
	ran := map[queryKey]int{}
	release := make(chan struct{})
	m := gossip.Member{Name: "n1"}
	for _, key := range []queryKey{{"n1", false}, {"n1", false}, {"n1", true}, {"n1", true}} {
		d.query(m, key, func(gossip.Member) {
			mu.Lock()
			ran[key]++
			mu.Unlock()
			<-release
		})
	}
	close(release)
	d.wg.Wait()
	d.query(m, queryKey{"n1", true}, func(gossip.Member) { ran[queryKey{"n1", true}]++ }) // the one before has ended
	d.Close()
	d.query(m, queryKey{"n1", false}, func(gossip.Member) { t.Error("a query after Close") })
	if ran[queryKey{"n1", false}] != 1 || ran[queryKey{"n1", true}] != 2 {
		t.Errorf("%v", ran)
	}
}

// TestLeaves: a node that wants to leave while it is being described is reported once it is known, and once only.
func TestLeaves(t *testing.T) {
	s := startAs(t, "coordinator", "coordinator", 1, false)
	got := make(chan *nodeDrain, 8)
	pid, err := s.Spawn("director", actor.PropsFromFunc(func(c actor.Context) {
		if m, ok := c.Message().(*nodeDrain); ok {
			got <- m
		}
	}))
	if err != nil {
		t.Fatal(err)
	}
	director := &Director{root: s.Actors().Root, pid: pid}
	d := &Discoverer{director: director, leaving: map[string]uint64{}}
	m := gossip.Member{Name: "n1", Meta: gossip.Meta{Role: "node", State: gossip.Draining, Incarnation: 7}}
	d.leaves(m) // not known
	director.incarnations.Store("n1", uint64(6))
	d.leaves(m) // an earlier process is known
	director.incarnations.Store("n1", uint64(7))
	d.leaves(m)
	d.leaves(m)
	m.Meta.Incarnation = 8
	director.incarnations.Store("n1", uint64(8))
	d.leaves(m)
	for _, want := range []uint64{7, 8} {
		select {
		case m := <-got:
			if m.id != "n1" || m.incarnation != want || !m.leaves {
				t.Fatalf("%+v, want incarnation %d", m, want)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("no drain of incarnation %d", want)
		}
	}
	select {
	case m := <-got:
		t.Fatalf("a second time: %+v", m)
	case <-time.After(20 * time.Millisecond):
	}
}
