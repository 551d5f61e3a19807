package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	pb "google.golang.org/protobuf/proto"

	"github.com/shoal-llm/shoal/internal/node"
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/internal/rpc"
	"github.com/shoal-llm/shoal/internal/testutil"
	"github.com/shoal-llm/shoal/internal/wire"
)

// older is a socket of a build from before multi-pass plans.
type older struct {
	node.Handle
	step func(r *proto.StepRequest) (*proto.StepRequest, error)
}

func (o older) Step(ctx context.Context, r *proto.StepRequest) (*proto.StepReply, error) {
	r, err := o.step(r)
	if err != nil {
		return nil, err
	}
	return o.Handle.Step(ctx, r)
}

// withOlder starts a cluster of three sockets. step modifies the plans of one of them.
func withOlder(t *testing.T, speaks uint32, step func(r *proto.StepRequest) (*proto.StepRequest, error)) *Local {
	t.Helper()
	return startLocal(t, LocalConfig{Sockets: 3, Threads: 1,
		Serve: ServeConfig{Model: goldenDir, Weights: "f32", KV: "f32", Speculate: "off", DecodeSteps: 8,
			StepDeadline: patience, SyncDeadline: 3 * time.Second},
		wrap: func(id string, h node.Handle) node.Handle {
			if id == "socket-1" {
				return older{h, step}
			}
			return h
		},
		wire: func(id string) uint32 {
			if id == "socket-1" {
				return speaks
			}
			return wire.Version
		}})
}

func stateOf(c *Local, id string) string {
	for _, n := range c.Cluster().Nodes {
		if n.ID == id {
			return strings.TrimSpace(n.State + " " + n.Reason)
		}
	}
	return "not there"
}

// TestOlderNodeIsServed: a node with an older version gets plans that it supports, and takes part.
func TestOlderNodeIsServed(t *testing.T) {
	g := goldens(t)[6]
	const version = 5 // before multi-pass plans
	var steps, newer atomic.Int64
	c := withOlder(t, version, func(r *proto.StepRequest) (*proto.StepRequest, error) {
		steps.Add(1)
		if needs, _ := proto.Needs(r); needs > version {
			newer.Add(1)
		}
		return r, nil
	})
	if got := generate(t, c, "r", g.Prompt, len(g.Greedy)); !slices.Equal(got, g.Greedy) {
		t.Errorf("got %v, want %v", got, g.Greedy)
	}
	if newer.Load() > 0 || steps.Load() < int64(len(g.Greedy)) || c.Cluster().Epoch != 1 {
		t.Errorf("%d of %d plans need a newer version, epoch %d", newer.Load(), steps.Load(), c.Cluster().Epoch)
	}
}

// TestSilentlyOlderNode: a node silently drops a field of its plans although it reports the same
// version. After three broken epochs it is left out by name, and the request completes.
func TestSilentlyOlderNode(t *testing.T) {
	g := goldens(t)[6]
	c := withOlder(t, wire.Version, func(r *proto.StepRequest) (*proto.StepRequest, error) {
		r = pb.Clone(r).(*proto.StepRequest)
		r.Passes = 0
		return r, nil
	})
	if got := generate(t, c, "r", g.Prompt, len(g.Greedy)); !slices.Equal(got, g.Greedy) {
		t.Errorf("got %v, want %v", got, g.Greedy)
	}
	if got := stateOf(c, "socket-1"); !strings.HasPrefix(got, "fenced 3 epochs in a row broke because of it") ||
		!strings.Contains(got, "peer timed out") {
		t.Errorf("the node is %q", got)
	}
	if s := c.Cluster(); s.Fences["broke"] != 1 || s.Epoch != 4 {
		t.Errorf("epoch %d, fences %v", s.Epoch, s.Fences)
	}
}

// TestNodeThatRefuses: a node replies that it does not understand a plan. It is refused by name
// immediately, and accepted again as another process.
func TestNodeThatRefuses(t *testing.T) {
	g := goldens(t)[6]
	var c *Local
	var known atomic.Bool
	incarnation := uint64(1)
	c = withOlder(t, wire.Version, func(r *proto.StepRequest) (*proto.StepRequest, error) {
		if r.Passes < 2 || known.Load() {
			return r, nil
		}
		err := &rpc.RemoteError{Peer: "socket-1",
			Text: fmt.Sprintf("%v: StepRequest has the field 15, which is unknown to this build", rpc.ErrIncompatible)}
		c.director.Incompatible("socket-1", incarnation, err) // like node.Remote
		return nil, err
	})
	began := time.Now()
	if got := generate(t, c, "r", g.Prompt, len(g.Greedy)); !slices.Equal(got, g.Greedy) {
		t.Errorf("got %v, want %v", got, g.Greedy)
	}
	if took := time.Since(began); took > 3*time.Second && c.Cluster().Epoch > 2 {
		t.Errorf("the others waited for it: %v", took)
	}
	if got := stateOf(c, "socket-1"); !strings.HasPrefix(got, "refused: ") ||
		!strings.Contains(got, "StepRequest has the field 15") || !strings.Contains(got, "run the same build") {
		t.Errorf("the node is %q", got)
	}
	if s := c.Cluster(); s.Epoch != 2 || s.Recovery.Placements["node_refused"] != 1 {
		t.Errorf("epoch %d, %+v", s.Epoch, s.Recovery.Placements)
	}
	known.Store(true)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	v, err := c.director.View(ctx)
	if err != nil {
		t.Fatal(err)
	}
	h := v.Hosts["socket-1"]
	socket := v.Known[0]
	socket.ID, socket.Incarnation, h.Incarnation = "socket-1", 2, 2
	c.director.Up(socket, h)
	testutil.Eventually(t, patience, "the node is ready again", func() (bool, string) {
		state := stateOf(c, "socket-1")
		return state == "ready", state
	})
	if got := generate(t, c, "again", g.Prompt, len(g.Greedy)); !slices.Equal(got, g.Greedy) {
		t.Errorf("with all three: got %v, want %v", got, g.Greedy)
	}
}
