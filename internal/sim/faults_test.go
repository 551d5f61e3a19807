package sim

import (
	"fmt"
	"time"
)

// Hook is a moment in a node's life at which a fault can be injected.
type Hook uint8

const (
	OnLoad       Hook = iota // slices are being read
	OnJoin                   // the group is being formed
	OnPrefill                // a step with prompt tokens has allocated its memory
	OnDecode                 // ... with decode rows only
	OnCollective             // between the sends of a collective
	OnHandover               // kept rows are being sent to the owner
	OnReply                  // the step is committed, the answer not sent
	hooks
)

var hookNames = [hooks]string{"loading", "joining", "prefill", "decode", "a collective", "the hand-over", "the reply"}

func (h Hook) String() string { return hookNames[h] }

// faults are the pending faults.
type faults struct {
	armed  []armed
	active bool
	crash  Kind // of the coordinator, at the skip-th such moment; NoCrash: none
	skip   int
	power  int // the store loses its power at this write; 0: never
}

type armed struct {
	at   Hook
	skip int // times that the moment passes before the fault
	do   func(n *node)
}

// hook is called by nodes at these moments.
func (w *world) hook(h Hook, n *node) {
	for i := range w.faults.armed {
		a := &w.faults.armed[i]
		if a.at != h || n.dead {
			continue
		}
		if a.skip--; a.skip >= 0 {
			continue
		}
		do := a.do
		w.faults.armed = append(w.faults.armed[:i], w.faults.armed[i+1:]...)
		do(n)
		return
	}
}

// plan draws the faults of the schedule.
func (w *world) plan() {
	w.faults.active, w.faults.crash = true, NoCrash
	if w.chance(5) {
		w.faults.crash, w.faults.skip = KilledBeforeEmit+Kind(w.rng.IntN(6)), w.rng.IntN(1<<w.rng.IntN(6))
	}
	if w.chance(4) {
		w.faults.power = 1 + w.rng.IntN(1<<w.rng.IntN(7))
	}
	if w.chance(8) { // a straggler that stays slow
		w.after(nil, w.between(0, w.cfg.busy/2), func() { w.slow(w.nodes[w.rng.IntN(len(w.nodes))], 64, w.cfg.quiet) })
	}
	for range w.rng.IntN(w.cfg.faults + 1) {
		if w.chance(2) {
			at := Hook(w.rng.IntN(int(hooks)))
			w.faults.armed = append(w.faults.armed, armed{at, w.rng.IntN(1 << w.rng.IntN(6)), func(n *node) {
				if w.chance(4) {
					w.storm(n)
					return
				}
				w.injectFault(n, at.String())
			}})
			continue
		}
		w.after(nil, w.between(0, w.cfg.quiet), func() {
			n := w.nodes[w.rng.IntN(len(w.nodes))]
			switch w.rng.IntN(12) {
			case 0, 1:
				w.injectFault(n, "some time")
			case 2:
				w.partition()
			case 3:
				w.noise()
			case 4:
				w.suspicion(n)
			case 5:
				c := w.coord
				if w.chance(3) {
					c = w.coords[w.rng.IntN(len(w.coords))]
				}
				if c.dead || w.chance(2) {
					w.rest(c.process)
				} else {
					w.cover[KilledCoordinator]++
					w.logf("%s is killed", c.name)
					w.crash(c)
				}
			case 6:
				w.drag(n)
			case 7:
				w.storm(n)
			case 8:
				w.hangExecutor(n)
			case 9:
				w.drought()
			case 10:
				w.blackout()
			case 11:
				w.fill()
			}
		})
	}
}

// injectFault kills, freezes or hangs a node.
func (w *world) injectFault(n *node, during string) {
	if n.dead || !w.faults.active {
		return
	}
	switch w.rng.IntN(6) {
	case 0, 1, 2:
		w.cover.kill(during)
		w.kill(n, during)
	case 3, 4:
		w.cover[Frozen]++
		w.rest(n.process)
	case 5:
		if w.chance(2) {
			w.hangExecutor(n)
			return
		}
		w.cover[Hung]++
		w.logf("%s: its socket hangs", n.name)
		n.hangs = true
		w.after(nil, w.spell(), n.unhang)
	}
}

// hangExecutor makes the executor of a node hang in its next job.
func (w *world) hangExecutor(n *node) {
	w.cover[Jammed]++
	w.logf("%s: its executor hangs", n.name)
	n.jobs.hangs = true
	w.after(nil, w.spell(), n.resumeExecutor)
}

// drought is a hang of a resource that all nodes share: none makes progress.
func (w *world) drought() {
	w.cover[Drought]++
	w.logf("the nodes' shared part hangs")
	d := w.spell()
	for _, n := range w.nodes {
		n.jobs.hangs = true
		w.after(nil, d, n.resumeExecutor)
	}
}

// spell is the duration of a fault: often less than the deadlines, sometimes more.
func (w *world) spell() time.Duration {
	return w.between(time.Millisecond, time.Duration(1+w.rng.IntN(16))*50*time.Millisecond)
}

func (w *world) rest(p *process) {
	w.freeze(p)
	w.after(nil, w.spell(), func() { w.thaw(p) })
}

// kill ends a process at once. Calls to it fail, and usually it is restarted.
func (w *world) kill(n *node, during string) {
	w.logf("%s.%d is killed during %s", n.name, n.incarnation, during)
	n.dead, n.held = true, nil
	for _, c := range n.calls {
		w.refuse(c)
	}
	for _, c := range w.coords {
		c.crashed(n)
	}
	if !w.chance(4) {
		w.after(nil, w.spell(), func() { w.restart(n) })
	}
}

// restart replaces a dead process by a new one.
func (w *world) restart(n *node) {
	if w.nodes[n.slot] != n || !n.dead {
		return
	}
	fresh := w.newNode(n.slot, n.memory.budget, n.share)
	w.nodes[n.slot] = fresh
	w.cover[Restarted]++
	w.logf("%s comes back as %s.%d", n.name, fresh.name, fresh.incarnation)
}

// partition cuts links: between two sides, in one direction, or of one pair.
func (w *world) partition() {
	type pair struct{ a, b int }
	var cuts []pair
	var ports []int
	for i := range w.coords {
		ports = append(ports, maxNodes+i)
	}
	for slot := range w.nodes {
		ports = append(ports, slot)
	}
	kind := w.rng.IntN(3)
	switch kind {
	case 0: // two sides
		side := make([]bool, maxNodes+maxRivals)
		for _, p := range ports {
			side[p] = w.chance(2)
		}
		for _, a := range ports {
			for _, b := range ports {
				if side[a] != side[b] {
					cuts = append(cuts, pair{a, b})
				}
			}
		}
	case 1: // one node cannot be heard, but hears
		a := ports[w.rng.IntN(len(ports))]
		for _, b := range ports {
			cuts = append(cuts, pair{a, b})
		}
	case 2: // one pair
		a, b := ports[w.rng.IntN(len(ports))], ports[w.rng.IntN(len(ports))]
		cuts = append(cuts, pair{a, b}, pair{b, a})
	}
	w.cover[PartitionedSides+Kind(kind)]++
	w.logf("network: cut %v (%d is the first coordinator)", cuts, maxNodes)
	for _, c := range cuts {
		if c.a != c.b {
			w.cut(c.a, c.b)
		}
	}
	w.after(nil, w.spell(), func() {
		w.logf("network: heal %v", cuts)
		for _, c := range cuts {
			w.heal(c.a, c.b)
		}
	})
}

// noise makes the network lose, repeat or delay messages for a while.
func (w *world) noise() {
	rate := 4 << w.rng.IntN(6)
	what := w.rng.IntN(4)
	w.logf("network: noise %d, one message in %d", what, rate)
	switch what {
	case 0:
		w.net.loss = rate * 2
	case 1:
		w.net.twice = rate
	case 2:
		w.net.late = rate
	case 3:
		w.net.twice, w.net.late = 2+rate/16, rate
	}
	w.after(nil, w.spell(), func() {
		w.net.loss, w.net.twice, w.net.late = 0, 0, 0
		w.trouble()
		w.logf("network: quiet")
	})
}

// suspicion is a false alarm: a working node is reported as gone.
func (w *world) suspicion(n *node) {
	c := w.coord
	w.cover[FalseAlarm]++
	w.after(c.process, 0, func() {
		if c.authority != nil {
			c.nodeDown(n.name, n.incarnation, "a false alarm")
		}
	})
}

// storm makes the network so slow that a node is given up again and again while its messages, and
// those of its whole epoch, are still in flight.
func (w *world) storm(n *node) {
	if !w.faults.active {
		return
	}
	w.net.late, w.net.storm = 2+w.rng.IntN(8), true
	w.logf("network: a storm, one message in %d is late", w.net.late)
	at := time.Duration(0)
	for range 1 + w.rng.IntN(4) {
		at += w.between(2*time.Millisecond, 60*time.Millisecond)
		w.after(nil, at, func() {
			if w.faults.active {
				w.suspicion(w.nodes[n.slot])
			}
		})
	}
	w.after(nil, at, func() {
		w.net.late, w.net.storm = 0, false
		w.trouble()
		w.logf("network: the storm is over")
	})
}

// drag makes a node slow.
func (w *world) drag(n *node) {
	w.slow(n, 2<<w.rng.IntN(6), w.spell())
}

func (w *world) slow(n *node, times int, d time.Duration) {
	n.slow = times
	w.logf("%s is %d times slower", n.name, n.slow)
	w.cover[Dragged]++
	w.after(nil, d, n.hurry)
}

// hurry ends that.
func (n *node) hurry() {
	if n.slow > 1 {
		n.slow, n.dragged = 1, n.w.now
	}
}

// calm ends every fault. Some of the dead stay dead.
func (w *world) calm() {
	w.logf("all faults end")
	w.faults.active, w.faults.armed, w.faults.crash = false, nil, NoCrash
	w.net.storm, w.disk.down, w.disk.full = false, false, false
	for _, c := range w.coords {
		w.takeOver(c, true)
	}
	if w.net.loss > 0 || w.net.twice > 0 || w.net.late > 0 {
		w.net.loss, w.net.twice, w.net.late = 0, 0, 0
		w.trouble()
	}
	for a := range w.net.links {
		for b := range w.net.links[a] {
			w.heal(a, b)
		}
	}
	alive := 0
	for _, n := range w.nodes {
		w.thaw(n.process)
		n.unhang()
		n.resumeExecutor()
		n.hurry()
		if !n.dead {
			alive++
		}
	}
	for _, c := range w.coords {
		w.thaw(c.process)
	}
	for _, n := range w.nodes {
		if n.dead && (alive == 0 || w.coord.served == 0 || w.chance(2)) {
			w.restart(n)
			alive++
		}
	}
	w.logf("%s", fmt.Sprint(alive, " nodes are alive"))
}
