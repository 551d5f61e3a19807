package socket

import (
	"context"
	"sync"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/shoal-llm/shoal/actors/socket/step"
	"github.com/shoal-llm/shoal/collective"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// collectiveActor is a child of the socket. It performs the exchanges of one epoch: it forms the group
// of ranks and begins the operations that stages request, one per micro-batch at a time. It closes the
// group when it stops or panics. Data from other ranks does not pass through it
// (docs/decisions/actors-and-rpc.md).
type collectiveActor struct {
	timeout time.Duration // for forming the group
	form    func(ctx context.Context) (*collective.Group, error)
	formed  func(x *exchanges, err error, took time.Duration) // called once

	cancel context.CancelFunc
	held   heldGroup
}

type operation func()

func (a *collectiveActor) Receive(c actor.Context) {
	switch m := c.Message().(type) {
	case *actor.Started:
		if a.cancel != nil {
			return // restarted after a panic, which has ended the group
		}
		var ctx context.Context
		ctx, a.cancel = context.WithTimeout(context.Background(), a.timeout)
		x := &exchanges{root: c.ActorSystem().Root, pid: c.Self()}
		go func() { // the context owns this goroutine; it ends with this actor
			began := time.Now()
			g, err := a.form(ctx)
			if x.group = g; err == nil && !a.held.keep(g) {
				err = ErrRetired
			}
			a.formed(x, err, time.Since(began))
		}()
	case operation:
		m()
	case *actor.Stopping, *actor.Restarting:
		a.held.end() // before the cancellation, so that a group that still forms is closed
		a.cancel()
	}
}

// heldGroup holds the group and closes it, also if it forms after the actor has ended.
type heldGroup struct {
	mu    sync.Mutex
	group *collective.Group
	over  bool
}

func (h *heldGroup) keep(g *collective.Group) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over {
		_ = g.Close() // the transport has not been used yet
		return false
	}
	h.group = g
	return true
}

func (h *heldGroup) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over = true; h.group != nil {
		_ = h.group.Close() // operations in flight fail with ErrClosed
	}
}

// exchanges sends the stages' operations to the collective actor. An operation after the actor has
// stopped is a dead letter: its epoch is over and its callback is not called.
type exchanges struct {
	root  *actor.RootContext
	pid   *actor.PID
	group *collective.Group
}

var _ step.Group = (*exchanges)(nil)

func (x *exchanges) AllGather(id collective.OpID, mine []float32, recv [][]float32, done func(error)) {
	x.root.Send(x.pid, operation(func() { x.group.AllGather(id, mine, recv, done) }))
}

func (x *exchanges) AllToAll(id collective.OpID, send, recv [][]byte, done func(error)) {
	x.root.Send(x.pid, operation(func() { x.group.AllToAll(id, send, recv, done) }))
}

func (x *exchanges) AllReduceTree(id collective.OpID, units int, nodes [][]tensor.Span, mine [][]float32, out []float32, done func(error)) {
	x.root.Send(x.pid, operation(func() { x.group.AllReduceTree(id, units, nodes, mine, out, done) }))
}

func (x *exchanges) ReduceScatterTree(id collective.OpID, units int, nodes [][]tensor.Span, mine [][]float32,
	bounds []int, out []float32, done func(error)) {
	x.root.Send(x.pid, operation(func() { x.group.ReduceScatterTree(id, units, nodes, mine, bounds, out, done) }))
}

func (x *exchanges) Hold()      { x.group.Hold() }
func (x *exchanges) Poll() bool { return x.group.Poll() }
func (x *exchanges) Rest()      { x.group.Rest() }

// WireBytes returns the bytes that the group has sent so far. A broadcast counts once.
func (x *exchanges) WireBytes() uint64 { return x.group.Stats().BytesSent }

// Lateness returns the time that this rank has waited for each other rank so far.
func (x *exchanges) Lateness() []time.Duration { return x.group.Late() }
