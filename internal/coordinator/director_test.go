package coordinator

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/shoal-llm/shoal/internal/node"
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/topology"
)

// readySocket is a socket that loads, joins and retires at once.
type readySocket struct{ node.Handle }

func (readySocket) Load(context.Context, *proto.LoadRequest) (*proto.LoadReply, error) {
	return &proto.LoadReply{}, nil
}

func (readySocket) Join(context.Context, *proto.JoinRequest) (*proto.JoinReply, error) {
	return &proto.JoinReply{}, nil
}

func (readySocket) Status(context.Context) (*proto.SocketStatus, error) {
	return &proto.SocketStatus{}, nil
}

func (readySocket) Retire(context.Context, *proto.RetireRequest) error { return nil }

// serving starts a director of two nodes, which serve.
func serving(t *testing.T, drained func(map[string]uint64)) *Director {
	t.Helper()
	shape := topology.Shape{Hidden: 256, Heads: 8, KVHeads: 4, HeadDim: 32, FFN: 512, Vocab: 512, Layers: 2, FFNUnits: 16,
		FFNUnitStart: func(u int) int { return u * 32 }}
	served := make(chan struct{}, 16)
	d := New(Config{Models: []Model{{Load: &proto.LoadRequest{}}}, LoadStall: time.Minute, Deadline: time.Second,
		Logger:  slog.New(slog.DiscardHandler),
		Drained: drained, OnServe: func([]*Group) { served <- struct{}{} },
		OnWithdraw: func(topology.Withdraw) {}, OnEvent: func(string, string, string) {},
		Authority: topology.AuthorityConfig{Shape: shape, Mapping: topology.Gather, Nodes: 2, Settle: time.Hour, Backoff: time.Millisecond,
			ModelHash: "m"}})
	system := actor.NewActorSystem()
	d.Start(system.Root)
	t.Cleanup(func() {
		if err := d.Stop(); err != nil {
			t.Error(err)
		}
		system.Shutdown()
	})
	for _, id := range []string{"a", "b"} {
		d.Up(topology.Node{ID: id, Incarnation: 1, ModelHash: "m"},
			Host{Incarnation: 1, Handles: []node.Handle{readySocket{}}, Sockets: []string{"socket"}})
	}
	select {
	case <-served:
	case <-time.After(time.Minute):
		t.Fatal("no placement serves")
	}
	return d
}

// TestDirectorForgetsGoneNodes: a node without a fixed name has another one after each restart. Nothing is kept of those
// that are gone.
func TestDirectorForgetsGoneNodes(t *testing.T) {
	d := serving(t, nil)
	for i := range 20 {
		id := fmt.Sprintf("host-%d", i)
		host := Host{Incarnation: 1, Handles: []node.Handle{readySocket{}}, Sockets: []string{"socket"}}
		if i%2 == 0 {
			d.Up(topology.Node{ID: id, Incarnation: 1, ModelHash: "m"}, host)
		} else {
			d.send(&nodeRefused{id: id, reason: "another build", host: host})
		}
		d.send(&nodeDown{id: id, incarnation: 1})
		d.send(&nodeAnswered{epoch: 1, id: id, loaded: []*proto.LoadReply{{}}}) // late
	}
	v, err := d.View(t.Context())
	if err != nil || len(v.Hosts) != 2 || len(v.Known) != 2 || len(v.Refused) != 0 || v.Hosts["a"].Incarnation != 1 {
		t.Errorf("%v; hosts %v, nodes %v, refused %v", err, v.Hosts, v.Known, v.Refused)
	}
}
