package sim

import (
	"errors"
	"fmt"
	"time"

	"github.com/shoal-llm/shoal/actors/socket/machine"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/topology"
)

// The parts of internal/coordinator/straggler.go and loadwatch.go: the real Stall, LoadStall and
// StragglerDetector get the nodes' reports.

// flight is a step in flight.
type flight struct {
	c       *coordinator
	g       *serving
	p       *plan.Plan
	replies []*proto.StepReply
	errs    []error
	left    int
	began   time.Duration
	rule    topology.Stall
	truth   holder
}

// answered records a rank's answer to the step, once.
func (f *flight) answered(rank int, v any, err error) {
	if f.replies[rank] != nil || f.errs[rank] != nil {
		return // it was given up
	}
	if err != nil {
		f.errs[rank] = fmt.Errorf("node %s: %w", f.g.nodes[rank].ID, err)
	} else {
		f.replies[rank] = v.(*proto.StepReply)
	}
	if f.left--; f.left == 0 {
		f.c.gathered(f.g, f.p, f.began, f.replies, f.errs)
	}
}

// look asks all nodes for their progress, and fences those that hold up the others.
func (f *flight) look() {
	if f.left == 0 {
		return
	}
	c, every, asked := f.c, f.c.w.cfg.stall/8, f.c.w.now
	c.nodesProgress(f.g.hosts, every, func(reports []*topology.NodeProgress) {
		if f.left == 0 {
			return
		}
		ranks := make([]topology.Progress, len(reports))
		for i, s := range reports {
			ranks[i] = s.InStep(f.p.Epoch, f.p.Step)
		}
		c.blameAll(ranks)
		hung := f.rule.Check(c.w.now-f.began, ranks)
		c.w.watch.blames(c, f.g.hosts, hung, asked, f.rule.Deadline-2*every)
		for _, rank := range hung {
			c.fence(f.g.nodes[rank], fmt.Sprintf("it made no progress in step %d.%d", f.p.Epoch, f.p.Step), true)
		}
		if len(hung) > 0 && c.w.opt.Bug != NoVerdict {
			for rank := range f.errs {
				f.answered(rank, nil, errFenced)
			}
			return
		}
		c.w.watch.held(c, &f.truth, f.g.hosts, c.w.cfg.stall+every, func(n *node) bool { return n.role() == waits })
		c.w.after(c.process, every, f.look)
	})
}

var errFenced = errors.New("cluster: a node is fenced")

// loading is a load in progress.
type loading struct {
	c     *coordinator
	e     topology.LoadSlices
	rule  topology.LoadStall
	began time.Duration
	truth holder
}

// look is flight.look for a load, whose nodes do not wait for each other.
func (l *loading) look() {
	c, number := l.c, l.e.Placement.Epoch
	over := func() bool {
		phase, _ := c.authority.Phase()
		return phase != topology.Loading || c.authority.Epoch() != number
	}
	if over() {
		return
	}
	var hosts []*node
	for _, n := range l.e.Nodes {
		hosts = append(hosts, c.hosts[n.ID].node)
	}
	every, asked := c.w.cfg.loadStall/8, c.w.now
	c.nodesProgress(hosts, every, func(reports []*topology.NodeProgress) {
		if over() {
			return
		}
		ranks := make([]topology.LoadProgress, len(reports))
		for i, s := range reports {
			ranks[i] = s.InLoad(number)
		}
		if c.w.opt.Bug == BlameAll {
			for i := range ranks {
				ranks[i].Done = ranks[i].Done || i == 0
			}
		}
		hung, fails := l.rule.Check(c.w.now-l.began, ranks)
		c.w.watch.blames(c, hosts, hung, asked, l.rule.Deadline-2*every)
		for _, rank := range hung {
			c.fence(l.e.Nodes[rank], "it made no progress in loading its weights", true)
		}
		if fails {
			c.w.cover[LoadGivenUp]++
			for _, n := range l.e.Nodes {
				c.post(func() {
					c.answered(number, n.ID, errors.New("cluster: no node has made progress in loading its weights"))
				})
			}
		}
		if len(hung) == 0 {
			c.w.watch.held(c, &l.truth, hosts, l.rule.Deadline+3*every, func(n *node) bool { return n.machine.Phase != machine.Loading })
		}
		c.w.after(c.process, every, l.look)
	})
}

// nodesProgress asks all nodes for their progress at once. A node that has not answered after limit
// counts as silent.
func (c *coordinator) nodesProgress(hosts []*node, limit time.Duration, done func([]*topology.NodeProgress)) {
	reports, left := make([]*topology.NodeProgress, len(hosts)), len(hosts)
	for i, h := range hosts {
		c.w.ask(c.process, h.process, limit, func(reply func(any, error)) {
			h.take(func() { reply(h.nodeProgress(), nil) })
		}, func(v any, err error) {
			if err == nil {
				reports[i] = v.(*topology.NodeProgress)
			}
			if left--; left == 0 {
				done(reports)
			}
		})
	}
}

// pace is the stepper's record of the steps of an epoch.
type pace struct {
	topology.StragglerDetector
	epoch uint32
	truth map[string]spent // steps in which a node alone was slow
}

// keepPace records how long each node kept the others waiting. The thresholds of StragglerDetector
// are in seconds of the real product, so times are scaled.
func (c *coordinator) keepPace(g *serving, took time.Duration, replies []*proto.StepReply) {
	ids, late := make([]string, len(replies)), make([][]time.Duration, len(replies))
	for i, r := range replies {
		ids[i] = g.nodes[i].ID
		for _, d := range r.LateMicros {
			late[i] = append(late[i], time.Duration(d)*time.Microsecond*paceScale)
		}
	}
	p := &c.pace
	if p.epoch != g.place.Epoch {
		*p = pace{epoch: g.place.Epoch}
	}
	for _, r := range p.Step(took*paceScale, ids, c.mirrored(late), nil) {
		switch {
		case r.Over:
			c.w.cover[StragglerOver]++
			continue
		case !r.Fence:
			c.w.cover[StragglerNamed]++
			continue
		}
		for rank, n := range g.nodes {
			if n.ID == r.ID {
				c.w.watch.slows(c, g.hosts[rank])
				c.fence(n, fmt.Sprintf("the others wait for it %.0f%% of the time", 100*r.Ratio), false)
			}
		}
	}
	c.w.watch.paced(c, g, took)
}

// fence is the director's: it fences a node.
func (c *coordinator) fence(n topology.Node, why string, hung bool) {
	if c.w.opt.Bug == NoVerdict {
		return
	}
	c.post(func() {
		effects := c.authority.Fence(n.ID, n.Incarnation, why, hung)
		if f, fenced := c.authority.Fenced()[n.ID]; fenced && effects != nil {
			c.w.logf("director: %s is fenced, for the %d. time: %s", n.ID, f.Times, why)
			if hung {
				c.w.cover[FencedHung]++
			} else {
				c.w.cover[FencedSlow]++
			}
		}
		c.direct(effects)
	})
}

// probe checks whether a fenced node's executor works.
func (c *coordinator) probe(n topology.Node) {
	if c.w.opt.Bug == NoProbe {
		return
	}
	h := c.hosts[n.ID].node
	c.w.ask(c.process, h.process, c.w.cfg.probe, func(reply func(any, error)) {
		h.take(func() { reply(h.nodeProgress(), nil) })
	}, func(v any, err error) {
		if err != nil || v.(*topology.NodeProgress).Busy {
			c.w.cover[ProbedInVain]++
			return
		}
		c.post(func() {
			c.w.cover[Back]++
			c.authority.Responds(n.ID, n.Incarnation)
		})
	})
}
