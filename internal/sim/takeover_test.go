package sim

import (
	"time"

	"github.com/shoal-llm/shoal/actors/batcher"
)

// Jobs survive their coordinator: the log has every token before its client gets it. A streamed request
// ends with its connection.

// faultDue reports whether a pending fault hits at this moment of the coordinator.
func (c *coordinator) faultDue(at Kind) bool {
	f := &c.w.faults
	if f.crash != at {
		return false
	}
	if f.skip--; f.skip >= 0 {
		return false
	}
	f.crash = NoCrash
	c.w.cover[at]++
	return true
}

// dies kills the coordinator at a moment. It also returns true if it is dead already.
func (c *coordinator) dies(moment bool, at Kind) bool {
	if !c.dead && moment && c.faultDue(at) {
		c.w.logf("the coordinator is killed: %v", at)
		c.w.crash(c)
	}
	return c.dead
}

// stalls freezes the coordinator at a moment, long enough for another one to take over. It calls
// next when the coordinator continues.
func (c *coordinator) stalls(at Kind, next func()) {
	if !c.faultDue(at) {
		next()
		return
	}
	w := c.w
	w.freeze(c.process)
	w.after(nil, w.between(w.cfg.ttl, 4*w.cfg.ttl), func() { w.thaw(c.process) })
	w.after(c.process, 0, next)
}

// crash ends the coordinator; another one starts a little later.
func (w *world) crash(c *coordinator) {
	c.dead, c.held = true, nil
	for _, k := range w.clients {
		if k.asked && k.end == nil && !k.job && k.at == c {
			k.end, k.ended = &batcher.Finish{ID: k.spec.ID, Reason: batcher.ReasonError, Code: "connection lost"}, w.now
		}
	}
	w.hint(c)
	successor := w.chance(2)
	w.after(nil, w.between(5*time.Millisecond, 150*time.Millisecond), func() { w.takeOver(c, successor) })
}

// takeOver starts a coordinator in the place of a dead one.
func (w *world) takeOver(c *coordinator, successor bool) {
	if c.dead && w.coords[c.place] == c {
		w.candidate(c.place, successor)
	}
}

// resume resumes the jobs of the log; their clients attach to this coordinator.
func (w *world) resume() {
	if len(w.clients) > 0 {
		w.cover[TakenOver]++
		w.logf("%s.%d takes over", w.coord.name, w.coord.incarnation)
	}
	for _, k := range w.clients {
		if k.job && k.end == nil {
			k.at, k.received = w.coord, false
		}
	}
	w.coord.openJobs()
}
