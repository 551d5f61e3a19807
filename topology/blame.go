package topology

import (
	"fmt"
	"slices"
	"time"
)

// A node that answers pings can still break every epoch that it takes part in: it does not
// follow the plan, it always fails its load, a message between it and another never arrives.
// Epochs are blamed on nodes here, and a node with several in a row is fenced.
const (
	blameLimit  = 3               // epochs in a row, for a process that has not been fenced for it
	blameWindow = 2 * time.Minute // from one to the next of a row
)

// Failure is how one rank failed a step.
type Failure struct {
	Rank  int
	Named []int // ranks that it waited for in vain; nil: none
	Alone bool  // it failed by itself: no other rank is involved
}

// blame counts the epochs in a row that broke because of one process.
type blame struct {
	incarnation uint64
	epochs      int
	alone       bool          // it failed by itself, the newest time
	at          time.Duration // the newest
}

// Suspect is the rank that a failed step is blamed on; alone: it failed by itself. -1: nobody,
// because all ranks failed alike or none says why. Of ranks with the same number of votes it is
// the highest, as for ranks that do not hear each other.
func Suspect(ranks int, failed []Failure) (rank int, alone bool) {
	votes, alones := make([]int, ranks), 0
	for _, f := range failed {
		if f.Alone {
			alones++
		}
		for _, r := range f.Named {
			if r >= 0 && r < ranks && r != f.Rank {
				votes[r]++
			}
		}
	}
	switch {
	case alones == 1 && ranks > 1: // the others wait for it, whatever they name
		i := slices.IndexFunc(failed, func(f Failure) bool { return f.Alone })
		return failed[i].Rank, true
	case alones > 0:
		return -1, false
	}
	rank = -1
	for r, n := range votes {
		if n > 0 && (rank < 0 || n >= votes[rank]) {
			rank = r
		}
	}
	return rank, false
}

// Blame counts an epoch that broke because of a node, or a load that it failed. The third time in
// a row the node is fenced; a process that was fenced for it before is fenced at once.
//
// alone: the node failed by itself. The cause can be a request as well. If another node fails
// alone while one is left out for that, the fault has moved with the request: the node is
// forgiven, and for a while no node is blamed for such failures.
func (a *Authority) Blame(epoch uint32, id, fault string, alone bool) []Effect {
	n, ok := a.nodes[id]
	if !ok || epoch != a.epoch || a.phase == Gathering || !a.takesPart(id) {
		return nil
	}
	if alone {
		if a.now < a.excused {
			return nil
		}
		if a.forgive(id) {
			a.excused = a.now + blameWindow
			return nil
		}
	}
	b := a.blamed[id]
	if b.incarnation != n.Incarnation || a.now-b.at > blameWindow && !a.broke(n) {
		b = blame{incarnation: n.Incarnation}
	}
	b.epochs, b.alone, b.at = b.epochs+1, alone, a.now
	a.blamed[id] = b
	if b.epochs < blameLimit && !a.broke(n) || !a.spares(n) {
		return nil
	}
	return a.fence(n, Fence{Broke: true, Reason: fmt.Sprintf("%d epochs in a row broke because of it, the last one: %s", b.epochs, fault)})
}

// broke reports whether a process has been fenced for broken epochs.
func (a *Authority) broke(n Node) bool {
	f, ok := a.fenced[n.ID]
	return ok && f.Incarnation == n.Incarnation && f.Broke
}

// forgive lets nodes take part again that are left out because they failed alone, unless it is the
// node that failed now. false: there is none.
func (a *Authority) forgive(failed string) (any bool) {
	for _, n := range a.Known() {
		if n.ID != failed && a.isFenced(n) && a.broke(n) && a.blamed[n.ID].alone {
			delete(a.fenced, n.ID)
			delete(a.blamed, n.ID)
			any, a.changed = true, a.now
		}
	}
	return any
}
