package socket

import (
	"context"
	"sync"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/collective"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// collectiveActor is a socket's part in the exchanges of one epoch, and its child: it
// forms the group of the ranks, begins the operations that stages ask for, one a
// micro-batch at a time, and closes the group when it is stopped, or when it panics.
// What arrives from other ranks does not pass through it (docs/decisions/actors-and-rpc.md).
type collectiveActor struct {
	patience time.Duration // for the group to form
	form     func(ctx context.Context) (*collective.Group, error)
	formed   func(x *exchanges, err error, took time.Duration) // told once

	cancel context.CancelFunc
	held   heldGroup
}

type operation func()

func (a *collectiveActor) Receive(c actor.Context) {
	switch m := c.Message().(type) {
	case *actor.Started:
		if a.cancel != nil {
			return // restarted after a panic, which ended the group
		}
		var ctx context.Context
		ctx, a.cancel = context.WithTimeout(context.Background(), a.patience)
		x := &exchanges{root: c.ActorSystem().Root, pid: c.Self()}
		go func() { // owner: the context, which ends with this actor
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
		a.held.end() // first: what forms as it is cancelled is too late
		a.cancel()
	}
}

// heldGroup closes a group that forms when nobody waits for it any more.
type heldGroup struct {
	mu    sync.Mutex
	group *collective.Group
	over  bool
}

func (h *heldGroup) keep(g *collective.Group) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over {
		_ = g.Close() // of a transport that carried nothing yet
		return false
	}
	h.group = g
	return true
}

func (h *heldGroup) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over = true; h.group != nil {
		_ = h.group.Close() // what was in flight is told ErrClosed
	}
}

// exchanges is how stages reach the collective actor. An operation that comes when it has
// stopped is a dead letter: its epoch is over, and nobody waits.
type exchanges struct {
	root  *actor.RootContext
	pid   *actor.PID
	group *collective.Group
}

var _ layer.Group = (*exchanges)(nil)

func (x *exchanges) AllGather(id collective.OpID, mine []float32, recv [][]float32, done func(error)) {
	x.root.Send(x.pid, operation(func() { x.group.AllGather(id, mine, recv, done) }))
}

func (x *exchanges) AllToAll(id collective.OpID, send, recv [][]byte, done func(error)) {
	x.root.Send(x.pid, operation(func() { x.group.AllToAll(id, send, recv, done) }))
}

func (x *exchanges) AllReduceTree(id collective.OpID, units int, nodes [][]tensor.Span, mine [][]float32, out []float32, done func(error)) {
	x.root.Send(x.pid, operation(func() { x.group.AllReduceTree(id, units, nodes, mine, out, done) }))
}

func (x *exchanges) ReduceScatterTree(id collective.OpID, units int, nodes [][]tensor.Span, mine [][]float32, bounds []int, out []float32, done func(error)) {
	x.root.Send(x.pid, operation(func() { x.group.ReduceScatterTree(id, units, nodes, mine, bounds, out, done) }))
}

func (x *exchanges) Hold()      { x.group.Hold() }
func (x *exchanges) Poll() bool { return x.group.Poll() }
func (x *exchanges) Rest()      { x.group.Rest() }

// wireBytes is what the group has sent so far, a broadcast counted once.
func (x *exchanges) wireBytes() uint64 { return x.group.Stats().BytesSent }

// lateness is how long this rank has waited for each other so far.
func (x *exchanges) lateness() []time.Duration { return x.group.Late() }
