package sim

import (
	"time"

	"shoal/actors/batcher"
)

// What outlives a coordinator: jobs, in a log that has every token before its
// client has it. A request over a stream ends with its connection.

// dies strikes the coordinator down where a fault waits for this moment.
func (c *coordinator) dies(moment bool, at Kind) bool {
	w := c.w
	if c.dead {
		return true
	}
	if !moment || w.faults.crash != at {
		return false
	}
	if w.faults.skip--; w.faults.skip >= 0 {
		return false
	}
	w.faults.crash = NoCrash
	w.cover[at]++
	w.logf("the coordinator is killed: %v", at)
	w.crash(c)
	return true
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
	heir := w.chance(2)
	w.after(nil, w.between(5*time.Millisecond, 150*time.Millisecond), func() { w.takeOver(c, heir) })
}

// takeOver starts a coordinator in the place of a dead one.
func (w *world) takeOver(c *coordinator, heir bool) {
	if c.dead && w.coords[c.place] == c {
		w.candidate(c.place, heir)
	}
}

// resume takes up the jobs of the log; their clients attach to this coordinator.
func (w *world) resume() {
	if len(w.clients) > 0 {
		w.cover[TakenOver]++
		w.logf("%s.%d takes over", w.coord.name, w.coord.incarnation)
	}
	for _, k := range w.clients {
		if k.job && k.end == nil {
			k.at, k.told = w.coord, false
		}
	}
	w.coord.openJobs()
}
