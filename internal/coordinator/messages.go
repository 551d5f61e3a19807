package coordinator

import (
	"context"
	"fmt"
	"time"

	"github.com/shoal-llm/shoal/internal/node"
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/topology"
)

// Messages to the director.
type (
	nodeUp struct {
		node topology.Node
		host Host
	}
	// nodeRefused: a node is present that the coordinator cannot work with.
	nodeRefused struct {
		id, reason string
		host       Host
	}
	nodeDown struct {
		id          string
		incarnation uint64
	}
	nodeAnswered struct {
		epoch  uint32
		id     string
		err    error
		loaded []*proto.LoadReply // by model; nil: it did not load
	}
	// nodeForeign: a node of this incarnation and the coordinator have incompatible messages.
	nodeForeign struct {
		id          string
		incarnation uint64
		err         error
	}
	// nodeFault: a node has caused the end of an epoch. alone: no other node took part in the fault.
	nodeFault struct {
		epoch uint32
		id    string
		fault string
		alone bool
	}
	epochBroken struct {
		epoch  uint32
		reason string
	}
	// nodeDrain: a node shall leave. leaves: at its own request, allowed even for the last node.
	nodeDrain struct {
		id          string
		incarnation uint64
		leaves      bool
		reply       chan error // nil: no reply is sent
	}
	// nodeUndrain: a drained node shall take part again.
	nodeUndrain struct {
		id    string
		reply chan error
	}
	// nodeFence: a node delays the others. nodeWorks: it responds again.
	nodeFence struct {
		id          string
		incarnation uint64
		reason      string
		hung        bool
	}
	nodeWorks struct {
		id          string
		incarnation uint64
	}
	placementRecorded struct{ epoch uint32 }
	drainedRecorded   struct{ nodes map[string]uint64 }
	leaseLost         struct{ reason string }

	clockTick   struct{}
	viewRequest struct{ reply chan View }
)

// View is a snapshot for /v1/cluster.
type View struct {
	Phase       topology.AuthorityPhase
	Loading     time.Duration // duration of the running load; 0: none is running
	Reason      string
	Epoch       uint32
	Placement   topology.Placement
	Nodes       []topology.Node
	Known       []topology.Node
	Refused     map[string]string
	Drained     map[string]uint64
	Quarantined []string
	Fenced      map[string]topology.Fence
	Fences      map[string]uint64 // how often nodes were fenced, by kind
	Hosts       map[string]Host
}

// Host is the director's record of a node, except for its place.
type Host struct {
	Handles     []node.Handle // of its sockets, by model; nil: refused without contacting it
	Sockets     []string      // names of these sockets in their process
	Incarnation uint64
	PID         int
	Address     string
	Build       string
	Arithmetic  string
	loaded      []*proto.LoadReply // of the newest load, by model
}

// Up registers a node that takes part.
func (d *Director) Up(n topology.Node, h Host) { d.send(&nodeUp{node: n, host: h}) }

// Incompatible reports that a node and this process have incompatible messages.
func (d *Director) Incompatible(id string, incarnation uint64, err error) {
	d.send(&nodeForeign{id: id, incarnation: incarnation, err: err})
}

// Broken reports a failed step, which ends its epoch.
func (d *Director) Broken(epoch uint32, reason string) {
	d.send(&epochBroken{epoch: epoch, reason: reason})
}

// Recorded reports that the store has the placement of an epoch.
func (d *Director) Recorded(epoch uint32) { d.send(&placementRecorded{epoch}) }

// DrainedRecorded reports that the store has these drained nodes.
func (d *Director) DrainedRecorded(nodes map[string]uint64) { d.send(&drainedRecorded{nodes}) }

// Depose reports that another coordinator has the lease.
func (d *Director) Depose(reason string) { d.send(&leaseLost{reason}) }

// Drain moves the work of a node to the others. It returns when that has started and the store has recorded it; View
// shows when the node is drained. The node takes no part again until Undrain, or until another process has its
// name.
func (d *Director) Drain(ctx context.Context, id string) error {
	m := &nodeDrain{id: id, reply: make(chan error, 1)}
	return d.request(ctx, m, m.reply)
}

// Undrain lets a drained node take part again.
func (d *Director) Undrain(ctx context.Context, id string) error {
	m := &nodeUndrain{id: id, reply: make(chan error, 1)}
	return d.request(ctx, m, m.reply)
}

// View returns a snapshot.
func (d *Director) View(ctx context.Context) (View, error) {
	m := &viewRequest{reply: make(chan View, 1)}
	d.send(m)
	select {
	case v := <-m.reply:
		return v, nil
	case <-ctx.Done():
		return View{}, fmt.Errorf("cluster: the director does not answer: %w", ctx.Err())
	}
}

// request sends a message and waits for its reply.
func (d *Director) request(ctx context.Context, m any, reply <-chan error) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	d.send(m)
	select {
	case err := <-reply:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (d *Director) send(m any) { d.root.Send(d.pid, m) }
