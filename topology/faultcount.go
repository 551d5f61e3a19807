package topology

import (
	"fmt"
	"slices"
	"time"
)

// A node that answers pings can still break every epoch: it does not follow the plan, its load always
// fails, or a message between it and another node never arrives. This file counts the broken epochs of
// each node in a row and fences the node at a limit.
const (
	faultLimit  = 3               // epochs in a row, for a process that was not fenced for it before
	faultWindow = 2 * time.Minute // the longest time between two epochs of a row
)

// Failure is one rank's report of a failed step.
type Failure struct {
	Rank  int
	Named []int // ranks whose data did not arrive; nil: none
	Alone bool  // it failed by itself, without waiting for another rank
}

// faultCount counts consecutive epochs that broke because of one process.
type faultCount struct {
	incarnation uint64
	epochs      int
	alone       bool          // in the newest of them it failed alone
	at          time.Duration // when the newest one broke
}

// Suspect returns the rank to blame for a failed step, and whether it failed alone. It returns -1
// if all ranks failed in the same way or none reports a reason. Of ranks with equal votes the highest is
// blamed, as in leaveOut.
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
	case alones == 1 && ranks > 1: // the others wait for this rank, even if they name another
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

// CountFault counts an epoch that broke because of a node, or whose load the node failed. After the
// third in a row the node is fenced. A process that was fenced for it before is fenced at once.
//
// alone: the node failed by itself. A request can cause that, too. If another node fails alone
// while one is fenced for it, the fault has moved with the request: the fenced node returns,
// and faults of single nodes are not counted for faultWindow.
func (a *Authority) CountFault(epoch uint32, id, fault string, alone bool) []Effect {
	n, ok := a.nodes[id]
	if !ok || epoch != a.epoch || a.phase == Gathering || !a.isMember(id) {
		return nil
	}
	if alone {
		if a.now < a.ignoreAloneUntil {
			return nil
		}
		if a.forgive(id) {
			a.ignoreAloneUntil = a.now + faultWindow
			return nil
		}
	}
	b := a.faults[id]
	if b.incarnation != n.Incarnation || a.now-b.at > faultWindow && !a.broke(n) {
		b = faultCount{incarnation: n.Incarnation}
	}
	b.epochs, b.alone, b.at = b.epochs+1, alone, a.now
	a.faults[id] = b
	if b.epochs < faultLimit && !a.broke(n) || !a.canSpare(n) {
		return nil
	}
	return a.fence(n, Fence{Broke: true, Reason: fmt.Sprintf("%d epochs in a row broke because of it, the last one: %s", b.epochs, fault)})
}

// broke reports whether a process was fenced for broken epochs.
func (a *Authority) broke(n Node) bool {
	f, ok := a.fenced[n.ID]
	return ok && f.Incarnation == n.Incarnation && f.Broke
}

// forgive readmits nodes that are fenced for failing alone, except failed, which failed now. It
// returns false if there is none.
func (a *Authority) forgive(failed string) (any bool) {
	for _, n := range a.Known() {
		if n.ID != failed && a.isFenced(n) && a.broke(n) && a.faults[n.ID].alone {
			delete(a.fenced, n.ID)
			delete(a.faults, n.ID)
			any, a.changed = true, a.now
		}
	}
	return any
}
