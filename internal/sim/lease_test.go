package sim

import (
	"time"

	"github.com/shoal-llm/shoal/topology"
)

// The coordinators of a durable cluster compete for a lease in a store: the real topology.Lease in
// each, over a network that loses requests and answers, and delivers writes long after their sender
// has given them up.

// store is the record and its revision.
type store struct {
	claim    topology.Claim
	revision uint64
}

func (w *world) write(e topology.WriteClaim) bool {
	if e.After != w.store.revision && w.opt.Bug != NoCompare {
		return false
	}
	w.store.claim, w.store.revision = e.Claim, w.store.revision+1
	return true
}

// lead carries out the lease's effects.
func (c *coordinator) lead(effects []topology.LeaseEffect) {
	for _, e := range effects {
		if c.dead || c.deposed {
			return
		}
		switch e := e.(type) {
		case topology.ReadClaim:
			c.reach(func() func() {
				claim, revision := c.w.store.claim, c.w.store.revision
				return func() { c.lead(c.lease.ReadDone(claim, revision)) }
			})
		case topology.WriteClaim:
			c.reach(func() func() {
				if !c.w.write(e) {
					return func() { c.lead(c.lease.WriteConflict()) }
				}
				revision := c.w.store.revision
				return func() { c.lead(c.lease.WriteDone(revision)) }
			})
		case topology.Elected:
			c.term = e.Claim.Term
			c.w.watch.holds(c)
			c.w.logf("%s.%d holds term %d, after epoch %d", c.name, c.incarnation, c.term, e.Claim.Placement.Epoch)
			c.coordinate(e.Claim.Placement.Epoch)
		case topology.Recorded:
			c.direct(c.authority.Recorded(e.Epoch))
		case topology.Deposed:
			c.w.cover[DeposedHolder]++
			c.w.logf("%s.%d is deposed by %s.%d", c.name, c.incarnation, e.By.Holder, e.By.Incarnation)
			c.direct(c.authority.Depose("deposed"))
			c.deposed = true
			// It ends. Its work in progress continues until then.
			c.w.after(c.process, c.w.between(0, 30*time.Millisecond), func() { c.w.crash(c) })
		}
	}
}

// reach sends a request to the store, which acts and returns the answer.
func (c *coordinator) reach(act func() (answer func())) {
	w, fate := c.w, 0
	if w.faults.active && w.chance(6) {
		fate = 1 + w.rng.IntN(3)
	}
	unsure := func() { w.after(c.process, w.cfg.renew, func() { c.lead(c.lease.OutcomeUnknown()) }) }
	switch fate {
	case 0:
		w.after(nil, w.transit(), func() { w.after(c.process, w.transit(), act()) })
	case 1: // the request is lost
		w.cover[StoreLost]++
		unsure()
	case 2: // it arrives late
		w.cover[StoreLate]++
		w.after(nil, w.between(0, 4*w.cfg.ttl), func() { act() })
		unsure()
	case 3: // the answer is lost
		w.cover[StoreLost]++
		w.after(nil, w.transit(), func() { act() })
		unsure()
	}
}

// candidate starts a coordinator in a place. With successor it succeeds a dead coordinator of this place,
// and does not wait for the lease to expire.
func (w *world) candidate(place int, successor bool) {
	c := w.newCoordinator(place)
	if place < len(w.coords) {
		w.coords[place] = c
	} else {
		w.coords = append(w.coords, c)
	}
	if w.coord == nil || w.coord.dead && w.coord.place == place {
		w.coord = c
	}
	if !w.cfg.durable {
		c.coordinate(0)
		return
	}
	c.lease = topology.NewLease(topology.LeaseConfig{Holder: c.name, Incarnation: c.incarnation,
		TTL: w.cfg.ttl, Hint: w.cfg.ttl / 5, Renew: w.cfg.ttl / 8, Successor: successor, Bootstrap: true})
	c.every(w.cfg.tick/4, func() { c.lead(c.lease.Tick(w.now - c.began)) })
}

// holds checks that a term has one holder.
func (k *checker) holds(c *coordinator) {
	if by := k.terms[c.term]; by != nil && by != c {
		k.fail("I7: term %d has two holders, %s.%d and %s.%d", c.term, by.name, by.incarnation, c.name, c.incarnation)
	}
	k.terms[c.term] = c
}

// follows checks that a node never follows an earlier coordinator than before.
func (k *checker) follows(n *node, e *epoch) {
	if e.of.term < n.term {
		k.fail("I7: %s follows %s.%d of term %d into epoch %d, after a coordinator of term %d",
			n.name, e.of.name, e.of.incarnation, e.of.term, e.place.Epoch, n.term)
	}
	n.term = e.of.term
}

// holders counts the coordinators that believe to hold the lease.
func (w *world) holders() (n int) {
	for _, c := range w.coords {
		if !c.dead && c.lease != nil && c.lease.Holding() {
			n++
		}
	}
	return n
}

// hint reports to the others that a coordinator is gone, which may be wrong.
func (w *world) hint(suspect *coordinator) {
	for _, c := range w.coords {
		if c != suspect && c.lease != nil {
			w.after(c.process, w.between(time.Millisecond, 20*time.Millisecond), func() { c.lease.HolderLost(suspect.incarnation) })
		}
	}
}
