package sim

import (
	"time"

	"github.com/shoal-llm/shoal/topology"
)

// member is the state of a node's slot in the coordinator's gossip and watches.
type member struct {
	there   bool
	node    *node
	reached time.Duration // when it could last be reached
	limit   time.Duration // silence after which it counts as gone
}

// compare is the discoverer. A reachable node is connected, and one that has been silent for too
// long is gone. The death of a reachable process is noticed at once.
func (c *coordinator) compare() {
	w := c.w
	for slot := range w.nodes {
		m, n := &c.members[slot], w.nodes[slot]
		if m.there && m.node != n && w.reaches(n.process, c.process) {
			c.lost(m, "it was restarted")
		}
		hears := !n.dead && !n.frozen && w.reaches(n.process, c.process) && w.reaches(c.process, n.process)
		switch {
		case hears:
			if !m.there {
				*m = member{there: true, node: n, limit: w.between(w.cfg.suspect, 4*w.cfg.suspect)}
			}
			m.reached = w.now
			c.met(n)
		case m.there && n.dead && w.reaches(n.process, c.process):
			c.lost(m, "its connection broke")
		case m.there && w.now-m.reached > m.limit:
			c.lost(m, "it has been silent")
		}
	}
}

func (c *coordinator) lost(m *member, why string) {
	n := m.node
	*m = member{}
	c.post(func() { c.nodeDown(n.name, n.incarnation, why) })
}

// crashed reports a broken connection before the next comparison.
func (c *coordinator) crashed(n *node) {
	if c.authority == nil {
		return
	}
	c.w.after(c.process, c.w.between(500*time.Microsecond, 20*time.Millisecond), func() {
		if m := &c.members[n.slot]; m.there && m.node == n && c.w.reaches(n.process, c.process) {
			c.lost(m, "its connection broke")
		}
	})
}

// met requests the description of a node that is new to the director.
func (c *coordinator) met(n *node) {
	if inc, ok := c.known[n.name]; ok && inc == n.incarnation || c.asking[n.name] {
		return
	}
	c.asking[n.name] = true
	c.w.ask(c.process, n.process, c.w.cfg.describe, func(reply func(any, error)) {
		n.take(func() { // the socket is asked for its epoch, so a hanging one does not answer
			reply(topology.Node{ID: n.name, Incarnation: n.incarnation, Share: n.share, KVBudget: n.memory.budget,
				ModelHash: modelHash, Epoch: n.machine.Epoch}, nil)
		})
	}, func(v any, err error) {
		if err == nil {
			c.post(func() { c.nodeUp(n, v.(topology.Node)) })
		}
		delete(c.asking, n.name)
	})
}
