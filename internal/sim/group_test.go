package sim

import (
	"fmt"
	"time"

	"github.com/shoal-llm/shoal/collective"
	"github.com/shoal-llm/shoal/topology"
)

// group is one rank's collective group: the real state machine, driven manually, over the simulated
// network, after a barrier of hellos.
type group struct {
	collective.ManualGroup
	w        *world
	n        *node
	e        *epoch
	op       uint64
	received []bool // hellos of this epoch, by rank
	acked    []bool // ranks that confirmed to have heard this one
	ready    bool
	over     bool
	early    []packet // packets before the group was formed
	tells    func(error)

	receive func(src int, msg []byte)
	ticking bool
	ticked  time.Duration
}

type packet struct {
	src int
	msg []byte
}

// unreachable names the ranks that keep the barrier closed.
func (g *group) unreachable() error {
	u := new(topology.Unreachable)
	for rank := range g.received {
		if !g.received[rank] || !g.acked[rank] {
			u.Nodes = append(u.Nodes, g.e.place.Slices[rank].ID)
		}
	}
	return u
}

// connect joins the epoch's group. done is called once: when every pair of ranks has heard each
// other, or at the deadline.
func (n *node) connect(e *epoch, done func(error)) {
	g := &group{w: n.w, n: n, e: e, received: make([]bool, len(e.peers)), acked: make([]bool, len(e.peers)), tells: done}
	g.received[e.rank], g.acked[e.rank] = true, true
	e.group = g
	n.w.after(n.process, n.w.cfg.join, func() { g.notify(g.unreachable()) })
	if len(e.peers) == 1 {
		g.form()
		return
	}
	g.greet()
}

// greet sends hellos repeatedly until the barrier opens.
func (g *group) greet() {
	if g.over || g.ready {
		return
	}
	for rank := range g.e.peers {
		if !g.received[rank] || !g.acked[rank] {
			g.hello(rank, true)
		}
	}
	g.w.after(g.n.process, g.w.cfg.hello, g.greet)
}

func (g *group) hello(to int, ask bool) {
	src, received, e := g.e.rank, g.received[to], g.e
	peer := e.peers[to]
	g.w.send(g.n.process, peer, func() {
		if o := g.w.groupOf(peer); o != nil && o.e.place.Epoch == e.place.Epoch && o.e.incarnations[src] == e.incarnations[src] {
			o.greeted(src, received, ask)
		}
	})
}

// groupOf is the group in which a process takes part now.
func (w *world) groupOf(p *process) *group {
	if n := w.nodes[p.slot]; n.process == p && n.epoch != nil {
		return n.epoch.group
	}
	return nil
}

func (g *group) greeted(src int, heardMe, ask bool) {
	if g.over {
		return
	}
	fresh := !g.received[src]
	g.received[src] = true
	g.acked[src] = g.acked[src] || heardMe
	if fresh || ask {
		g.hello(src, fresh && !g.acked[src])
	}
	for rank := range g.received {
		if !g.received[rank] || !g.acked[rank] {
			return
		}
	}
	if !g.ready {
		g.form()
	}
}

func (g *group) form() {
	e, cfg := g.e, g.w.cfg
	g.ready = true
	c := collective.Config{Rank: e.rank, Size: len(e.peers), Epoch: e.place.Epoch, Deadline: cfg.sync}
	for _, i := range e.incarnations {
		c.Incarnations = append(c.Incarnations, uint32(i))
	}
	if b := g.w.opt.Bug; b == NoFence || b == NoCollectiveFence {
		c.Epoch, c.Incarnations = 1, nil
	}
	m, err := collective.NewManualGroup(c, wire{g})
	if err != nil {
		panic(err)
	}
	g.ManualGroup = m
	for _, p := range g.early {
		g.receive(p.src, p.msg)
	}
	g.early = nil
	g.w.after(g.n.process, 0, func() { g.notify(nil) })
}

func (g *group) notify(err error) {
	if tells := g.tells; tells != nil {
		g.tells = nil
		g.n.take(func() { tells(err) })
	}
}

func (g *group) close() {
	if g.over {
		return
	}
	g.over = true
	if g.Group != nil {
		g.Close()
		for drop, n := range g.Stats().Dropped {
			if n > 0 {
				g.w.cover.dropped(collective.Drop(drop), n)
			}
		}
	}
	g.notify(errRetired)
}

// start starts the next operation of the epoch.
func (g *group) start(begin func(op collective.OpID)) {
	g.op++
	g.catchUp()
	begin(collective.Op(0, g.op))
	g.Work()
	if !g.ticking {
		g.ticking = true
		g.tick()
	}
}

// tick checks the deadlines while operations are pending.
func (g *group) tick() {
	if g.over || g.Err() != nil || g.Pending() == 0 {
		g.ticking = false
		return
	}
	g.w.after(g.n.process, g.Period(), func() {
		if !g.over {
			g.catchUp()
			g.tick()
		}
	})
}

// catchUp advances the group's clock, which measures how late others are.
func (g *group) catchUp() {
	g.Advance(g.w.now - g.ticked)
	g.ticked = g.w.now
}

// lateness is how long this rank has waited for each other rank so far.
func (g *group) lateness() []time.Duration {
	if g.Group == nil {
		return nil
	}
	return g.Late()
}

// wire is the group's transport.
type wire struct{ g *group }

func (t wire) Broadcast(msg []byte) error {
	for rank := range t.g.e.peers {
		if rank != t.g.e.rank {
			_ = t.Send(rank, msg)
		}
	}
	return nil
}

// Send delivers a message to the peer's current group at its arrival. Only the epoch in the message
// keeps it out of another group.
func (t wire) Send(to int, msg []byte) error {
	if to < 0 || to >= len(t.g.e.peers) {
		return fmt.Errorf("sim: no rank %d", to)
	}
	src, peer, w := t.g.e.rank, t.g.e.peers[to], t.g.w
	kept := append([]byte(nil), msg...)
	w.send(t.g.n.process, peer, func() {
		g := w.groupOf(peer)
		switch {
		case g == nil || g.over:
		case g.receive == nil:
			g.early = append(g.early, packet{src, kept})
		case g.e != t.g.e && g.e.place.Epoch != t.g.e.place.Epoch:
			before := g.Stats()
			g.receive(src, kept)
			if g.Stats().Dropped == before.Dropped {
				w.watch.fail("I4: a collective message of epoch %d was taken in epoch %d", t.g.e.place.Epoch, g.e.place.Epoch)
			}
		default:
			g.catchUp()
			g.receive(src, kept)
			g.Work()
		}
	})
	return nil
}

func (t wire) Receive(f func(src int, msg []byte)) { t.g.receive = f }
func (t wire) Close() error                        { return nil }
