package sim

import (
	"fmt"
	"slices"
	"strings"

	"github.com/shoal-llm/shoal/actors/batcher"
	"github.com/shoal-llm/shoal/actors/socket/machine"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/topology"
)

// checker holds the guarantees about the whole cluster. Those about one request are in
// client_test.go, those about one socket in node_test.go.
type checker struct {
	w       *world
	broken  string                  // the first broken guarantee
	opened  uint32                  // newest epoch that was opened
	terms   map[uint64]*coordinator // holder of each lease term
	openers map[uint32]*coordinator // coordinator of each recorded epoch
	groups  map[uint32]*epoch       // by epoch, as last loaded
	steps   int
}

func (k *checker) fail(format string, args ...any) {
	if k.w.opt.Blind && strings.HasPrefix(format, "I4") {
		return
	}
	if k.broken == "" {
		k.broken = fmt.Sprintf(format, args...)
		k.w.logf("BROKEN: %s", k.broken)
	}
}

// opens checks that a coordinator's epochs only rise, and that each recorded epoch has one
// coordinator. Without a store two epochs may have the same number if they have no node in common.
// A coordinator that was frozen may open its own epoch after others opened theirs: the nodes are
// past it.
func (k *checker) opens(c *coordinator, number uint32) {
	if number <= c.opened || k.w.cfg.durable && k.w.cfg.rivals == 1 && number <= k.opened {
		k.fail("I7: epoch %d is opened after epoch %d", number, k.opened)
	}
	if by := k.openers[number]; k.w.cfg.durable && by != nil && by != c {
		k.fail("I7: epoch %d is opened by %s.%d and by %s.%d", number, by.name, by.incarnation, c.name, c.incarnation)
	}
	k.opened, c.opened, k.openers[number] = max(k.opened, number), number, c
}

// loads checks that an epoch is the same group of processes for every node.
func (k *checker) loads(e *epoch) {
	known, ok := k.groups[e.place.Epoch]
	if ok && !slices.Equal(known.incarnations, e.incarnations) && (k.w.cfg.durable || known.of == e.of) {
		k.fail("I7: epoch %d is loaded for two groups, %v and %v", e.place.Epoch, known.incarnations, e.incarnations)
	}
	k.groups[e.place.Epoch] = e
}

// serves checks that one epoch of a coordinator serves at a time, and only its newest.
func (k *checker) serves(c *coordinator, number uint32) {
	if before := c.served; number <= before || number != c.opened {
		k.fail("I7: epoch %d serves after epoch %d, the newest is %d", number, before, k.opened)
	}
}

// starts: a step is of the epoch that was placed last, and the ledger holds.
func (k *checker) starts(c *coordinator, p *plan.Plan) {
	if p.Epoch != c.placed {
		k.fail("I7: step %d of epoch %d starts, epoch %d was placed", p.Step, p.Epoch, c.placed)
	}
	for _, o := range p.Open {
		c.ids[o.Seq] = o.ID
		if t := c.tickets[o.ID]; t != nil && t.got > 0 {
			k.w.cover[Reopened]++
		}
	}
	for _, d := range p.Decode {
		if t := c.tickets[c.ids[d.Seq]]; t != nil && d.Start-len(t.k.spec.Prompt)+1 < t.got {
			k.w.cover[Replayed]++
		}
	}
	if k.steps++; k.steps%8 == 0 {
		k.ledger(c)
	}
}

func (k *checker) ledger(c *coordinator) {
	for _, s := range c.batcher.Snapshot().Sockets {
		if s.Reserved > s.Budget || s.Reserved < 0 {
			k.fail("I5: the ledger reserves %d of %d bytes on %s", s.Reserved, s.Budget, s.ID)
		}
	}
}

// stale reports whether the answer of a step comes too late to have an effect.
func (k *checker) stale(c *coordinator, p *plan.Plan) bool {
	s := c.batcher.Snapshot()
	late := !s.Placed || !s.InFlight || s.Epoch != p.Epoch || s.Step != p.Step
	if late {
		k.w.cover[StaleResult]++
	}
	return late
}

// without checks that a stale answer had no effect.
func (k *checker) without(p *plan.Plan, e *batcher.Effects) {
	if e.Faults != nil || e.Emits != nil || e.Scores != nil || e.Finishes != nil || e.Broken != nil || e.Release != nil || e.Start != nil {
		k.fail("I4: the answer of step %d.%d, which is over, had an effect: %+v", p.Epoch, p.Step, *e)
	}
}

// memory checks that no node has ever exceeded its budget.
func (k *checker) memory() {
	for _, n := range k.w.nodes {
		if m := n.memory; m.peak > m.budget || m.used < 0 {
			k.fail("I5: %s held %d bytes, its budget is %d", n.name, m.peak, m.budget)
		}
	}
}

// ends checks that everything accepted has ended.
func (k *checker) ends() {
	for _, c := range k.w.clients {
		if c.asked && c.end == nil {
			if k.w.coord.authority == nil {
				k.fail("I8: %s has not ended %v after the last fault; nobody coordinates", c.spec.ID, k.w.now-k.w.cfg.quiet)
				return
			}
			phase, why := k.w.coord.authority.Phase()
			k.fail("I8: %s has not ended %v after the last fault; the authority is %s (%s), the batcher: %+v",
				c.spec.ID, k.w.now-k.w.cfg.quiet, phase, why, k.w.coord.batcher.Snapshot())
			return
		}
	}
	if c := k.w.coord; !c.dead && c.batcher != nil && !c.batcher.Idle() {
		k.fail("I1: the batcher has requests that nobody sent")
	}
}

// restless returns why the cluster is not at rest. At the end it must serve on all nodes that it
// may use, and the others must hold nothing.
func (k *checker) restless() string {
	c := k.w.coord
	if c.dead || c.authority == nil {
		return "I8: nobody coordinates"
	}
	if n := k.w.holders(); k.w.cfg.durable && n != 1 {
		return fmt.Sprintf("I7: %d coordinators hold the lease", n)
	}
	if phase, why := c.authority.Phase(); phase != topology.Serving {
		return fmt.Sprintf("I8: the cluster does not serve: %s: %s", phase, why)
	}
	_, part := c.authority.Placement()
	alive := 0
	for _, n := range k.w.nodes {
		if n.dead {
			continue
		}
		alive++
		s := n.machine.State
		takesPart := slices.ContainsFunc(part, func(m topology.Node) bool { return m.ID == n.name })
		switch {
		case takesPart && (s.Phase != machine.Ready || s.Epoch != c.authority.Epoch()):
			return fmt.Sprintf("I8: %s is part of epoch %d, but is %s at %d", n.name, c.authority.Epoch(), s.Phase, s.Epoch)
		case !takesPart && s.Phase != machine.Idle:
			return fmt.Sprintf("I6: %s is not part of epoch %d, but is %s at %d", n.name, c.authority.Epoch(), s.Phase, s.Epoch)
		}
	}
	want := alive
	if most := k.w.cfg.most; most > 0 {
		want = min(want, most)
	}
	if len(part) != want {
		return fmt.Sprintf("I8: %d nodes are alive, the placement has %d of them, want %d", alive, len(part), want)
	}
	return ""
}

// full names a node that holds cache bytes when no request is left.
func (k *checker) full() string {
	for _, n := range k.w.nodes {
		cached := int64(0)
		for _, b := range n.blocks {
			cached += b.bytes
		}
		if !n.dead && n.memory.used != cached {
			return fmt.Sprintf("I6: %s holds %d bytes of cache when all requests have ended, %d of them for prompts to come",
				n.name, n.memory.used, cached)
		}
	}
	return ""
}
