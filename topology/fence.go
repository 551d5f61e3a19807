package topology

import (
	"errors"
	"fmt"
	"time"
)

// Fence is a node that is up and left out, because it held up the others or cannot read its weights.
type Fence struct {
	Incarnation uint64
	Reason      string
	Until       time.Duration // not before then does it come back, on the authority's clock
	Times       int           // how often this process was fenced
	Slow        int           // of them, because it was slow
	Hung        bool          // it hung, rather than being slow: nothing is asked of it before it moves
	Broke       bool          // it broke epochs, by the last fault that it was fenced for
	over        bool
}

// A node comes back after a pause (AuthorityConfig.Pause), which doubles each time up
// to so many times itself. One that was slow has half the share then, and half again
// each time.
const fencePauses = 60

// Probe asks the shell whether a fenced node works again; Works is the answer, when
// it does. It is asked again after a pause.
type Probe struct{ Node Node }

func (Probe) effect() {}

// ErrWeights is the answer to LoadSlices of a node whose weight files were changed or cut
// after it opened them.
var ErrWeights = errors.New("weights of this node cannot be used")

// Fence leaves a node out for a while. Nothing happens when it is the last one, or
// another process by now.
func (a *Authority) Fence(id string, incarnation uint64, reason string, hung bool) []Effect {
	n, ok := a.nodes[id]
	if !ok || n.Incarnation != incarnation || !a.spares(n) {
		return nil
	}
	f := Fence{Reason: reason, Hung: hung}
	if !hung {
		f.Slow = 1
	}
	return a.fence(n, f)
}

// fence leaves a node out, for longer each time.
func (a *Authority) fence(n Node, f Fence) []Effect {
	id, reason := n.ID, f.Reason
	f.Incarnation, f.Times = n.Incarnation, 1
	if old, again := a.fenced[id]; again {
		f.Times, f.Slow = old.Times+1, f.Slow+old.Slow
	}
	f.Until = a.now + min(a.cfg.Pause<<min(f.Times-1, 10), fencePauses*a.cfg.Pause)
	a.fenced[id] = f
	if !a.takesPart(id) {
		return nil
	}
	return a.replan(KindFenced, id, fmt.Sprintf("node %s is fenced: %s", id, reason), true)
}

// spares reports whether a node that is up can be left out.
func (a *Authority) spares(n Node) bool {
	if a.phase == Over || a.isFenced(n) {
		return false
	}
	r := a.ready()
	return len(r) != 1 || r[0].ID != n.ID
}

// Works tells that a fenced node answered its probe: it is to take part again.
func (a *Authority) Works(id string, incarnation uint64) {
	if f, ok := a.fenced[id]; ok && f.Incarnation == incarnation && a.now >= f.Until {
		f.over, f.Hung = true, false
		a.fenced[id] = f
		a.changed = a.now
	}
}

// Fenced lists the nodes that are left out now, by id.
func (a *Authority) Fenced() map[string]Fence {
	out := map[string]Fence{}
	for id, f := range a.fenced {
		if n, ok := a.nodes[id]; ok && a.isFenced(n) {
			out[id] = f
		}
	}
	return out
}

func (a *Authority) isFenced(n Node) bool {
	f, ok := a.fenced[n.ID]
	return ok && f.Incarnation == n.Incarnation && !f.over
}

// slowed is what is left of a share: half for each time that its node was fenced.
func (a *Authority) slowed(n Node, share float64) float64 {
	if f, ok := a.fenced[n.ID]; ok && f.Incarnation == n.Incarnation && f.Slow > 0 {
		for range min(f.Slow, 6) {
			share /= 2
		}
	}
	return share
}

// probes asks after fenced nodes whose time is over, ten times a pause.
func (a *Authority) probes() []Effect {
	var out []Effect
	for _, n := range a.Known() {
		f := a.fenced[n.ID]
		if a.isFenced(n) && a.now >= f.Until && a.now >= a.probeAt {
			out = append(out, Probe{n})
		}
	}
	if out != nil {
		a.probeAt = a.now + a.cfg.Pause/10
	}
	return out
}
