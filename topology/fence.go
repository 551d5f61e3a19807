package topology

import (
	"errors"
	"fmt"
	"time"
)

// Fence describes a node that is up but left out: it is a straggler, breaks epochs, or cannot read
// its weights.
type Fence struct {
	Incarnation uint64
	Reason      string
	Until       time.Duration // earliest return, on the authority's clock
	Times       int           // how often this process was fenced
	Slow        int           // of Times: because it was slow
	Hung        bool          // it hangs; it is not used before it answers a probe
	Broke       bool          // the last reason was that it broke epochs
	over        bool
}

// fencePauses limits the pause. A node returns after AuthorityConfig.Pause, which doubles each time
// up to fencePauses times itself. A node that was slow returns with half its share, and half again
// each time.
const fencePauses = 60

// Probe makes the shell check whether a fenced node works again. If it does, the shell calls Responds.
// The probe is repeated after a pause.
type Probe struct{ Node Node }

func (Probe) effect() {}

// ErrWeights is the answer to LoadSlices of a node whose weight files were changed or truncated
// after it opened them.
var ErrWeights = errors.New("weights of this node cannot be used")

// Fence leaves a node out for a while. It has no effect on the last node, or if the id belongs to
// another process by now.
func (a *Authority) Fence(id string, incarnation uint64, reason string, hung bool) []Effect {
	n, ok := a.nodes[id]
	if !ok || n.Incarnation != incarnation || !a.canSpare(n) {
		return nil
	}
	f := Fence{Reason: reason, Hung: hung}
	if !hung {
		f.Slow = 1
	}
	return a.fence(n, f)
}

// fence leaves a node out, longer each time.
func (a *Authority) fence(n Node, f Fence) []Effect {
	id, reason := n.ID, f.Reason
	f.Incarnation, f.Times = n.Incarnation, 1
	if old, again := a.fenced[id]; again {
		f.Times, f.Slow = old.Times+1, f.Slow+old.Slow
	}
	f.Until = a.now + min(a.cfg.Pause<<min(f.Times-1, 10), fencePauses*a.cfg.Pause)
	a.fenced[id] = f
	if !a.isMember(id) {
		return nil
	}
	return a.replan(KindFenced, id, fmt.Sprintf("node %s is fenced: %s", id, reason), true)
}

// canSpare reports whether a node that is up can be left out.
func (a *Authority) canSpare(n Node) bool {
	if a.phase == Over || a.isFenced(n) {
		return false
	}
	r := a.ready()
	return len(r) != 1 || r[0].ID != n.ID
}

// Responds reports that a fenced node answered its probe, so it takes part again.
func (a *Authority) Responds(id string, incarnation uint64) {
	if f, ok := a.fenced[id]; ok && f.Incarnation == incarnation && a.now >= f.Until {
		f.over, f.Hung = true, false
		a.fenced[id] = f
		a.changed = a.now
	}
}

// Fenced lists the nodes that are fenced now, by id.
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

// slowed halves a share for each time that its node was fenced as slow.
func (a *Authority) slowed(n Node, share float64) float64 {
	if f, ok := a.fenced[n.ID]; ok && f.Incarnation == n.Incarnation && f.Slow > 0 {
		for range min(f.Slow, 6) {
			share /= 2
		}
	}
	return share
}

// probes returns probes of fenced nodes whose pause is over, ten times a pause.
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
