package sim

import "time"

// The world records which node delays the others. The coordinator has only the nodes' reports. Once the
// network and the coordinator have been undisturbed for a while, its verdicts must equal those of the
// world, and in time.

// settled is how long everything must have been undisturbed.
const settled = 450 * time.Millisecond

// trouble records that the network is disturbed, or was until now.
func (w *world) trouble() { w.net.troubled = w.now }

// fresh is the time of the last disturbance of a new process: none for the first processes.
func (w *world) fresh() time.Duration {
	if w.now == 0 {
		return -settled
	}
	return w.now
}

// well reports whether network and coordinator have been undisturbed for a while.
func (w *world) well(c *coordinator) bool {
	n := &w.net
	return n.loss == 0 && n.twice == 0 && n.late == 0 && n.cuts == 0 && w.now-n.troubled >= settled && w.now-c.stirred >= settled
}

// role is the real effect of a node on the others.
type role uint8

const (
	waits  role = iota // only waits for others
	works              // makes progress
	hangs              // makes no progress
	absent             // dead, frozen or just resumed: left to gossip
)

func (n *node) role() role {
	switch {
	case n.absent():
		return absent
	case n.hangs, n.jobs.hangs && n.jobs.busy():
		return hangs
	case n.jobs.busy():
		return works
	}
	return waits
}

func (n *node) absent() bool { return n.dead || n.frozen || n.w.now-n.stirred < settled }

// holder is the node that alone holds up the others, and since when.
type holder struct {
	node  *node
	since time.Duration
}

// held checks that a node that alone hangs, while all others are free, is fenced within limit. It
// is called when a look has blamed no node.
func (k *checker) held(c *coordinator, h *holder, hosts []*node, limit time.Duration, free func(*node) bool) {
	var hung *node
	alone := k.w.well(c) && len(hosts) > 1
	for _, n := range hosts {
		switch r := n.role(); {
		case r == hangs && hung == nil:
			hung = n
		case r == hangs || r == absent || !free(n):
			alone = false
		}
	}
	if !alone || hung != h.node {
		*h = holder{hung, k.w.now}
	}
	if h.node != nil {
		h.since = max(h.since, h.node.jobs.moved, h.node.jobs.spoke)
	}
	if h.node != nil && k.w.now-h.since > limit {
		k.fail("I8: %s hangs, the others have waited for %v, and it is not left out", h.node.name, k.w.now-h.since)
	}
}

// blames checks that a node blamed for hanging had made no progress for this time when it was
// asked, and that not all nodes hang alike.
func (k *checker) blames(c *coordinator, hosts []*node, hung []int, asked, long time.Duration) {
	if len(hung) == 0 || !k.w.well(c) {
		return
	}
	for _, i := range hung {
		n := hosts[i]
		if still := asked - n.jobs.moved; !n.hangs && !n.absent() && still >= 0 && still < long {
			k.fail("I8: %s is blamed for a standstill, but it moved %v before", n.name, still)
		}
	}
	alike := 0 // on a shared resource; an actor hangs by itself
	for _, n := range hosts {
		switch {
		case n.role() != hangs:
			return
		case !n.hangs:
			alike++
		}
	}
	for _, i := range hung {
		if !hosts[i].hangs || alike == 0 {
			k.fail("I8: %s is blamed while all %d hang alike", hosts[i].name, len(hosts))
		}
	}
}

// slows checks that a node blamed for being slow was slow recently.
func (k *checker) slows(c *coordinator, n *node) {
	if k.w.well(c) && !n.absent() && n.slow == 1 && k.w.now-n.dragged >= settled {
		k.fail("I8: %s is blamed for being slow, but it is not", n.name)
	}
}

// spent is the cost of steps.
type spent struct {
	steps int
	time  time.Duration
}

// paced checks that a node that alone is slow is fenced within twice the steps and the time that
// the verdict needs.
func (k *checker) paced(c *coordinator, g *serving, took time.Duration) {
	p := &c.pace
	if p.truth == nil {
		p.truth = map[string]spent{}
	}
	slow := 0
	well := k.w.well(c) && len(g.hosts) > 1
	for _, h := range g.hosts {
		if h.slow > 1 {
			slow++
		}
		hung := h.hangs || h.jobs.hangs || max(h.jobs.freed, h.jobs.spoke) > k.w.now-took
		well = well && !h.absent() && !hung
	}
	for i, h := range g.hosts {
		id := g.nodes[i].ID
		if !well || slow != 1 || h.slow < 64 {
			delete(p.truth, id)
			continue
		}
		s := spent{p.truth[id].steps + 1, p.truth[id].time + took}
		if p.truth[id] = s; s.steps > 2*8 && s.time > 2*8*time.Second/paceScale {
			k.fail("I8: %s has been %d times slower for %d steps in %v, and is not left out", id, h.slow, s.steps, s.time)
		}
	}
}
