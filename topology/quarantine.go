package topology

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Unreachable is the answer to FormGroup of a node that is up, but could not exchange messages with
// some of the others.
type Unreachable struct{ Nodes []string }

func (u *Unreachable) Error() string {
	return fmt.Sprintf("it and %s cannot reach each other", strings.Join(u.Nodes, ", "))
}

// quarantine is how long a node is left out.
type quarantine struct {
	incarnation uint64
	until, wait time.Duration
}

func (a *Authority) isQuarantined(n Node) bool {
	x, ok := a.quarantined[n.ID]
	return ok && x.incarnation == n.Incarnation && a.now < x.until
}

// Quarantined lists the nodes that are left out because others cannot reach them.
func (a *Authority) Quarantined() (ids []string) {
	for _, n := range a.Known() {
		if a.isQuarantined(n) {
			ids = append(ids, n.ID)
		}
	}
	return ids
}

// leaveOut quarantines nodes until all remaining nodes reach each other. The node in most pairs
// goes first; of equals, the one with the highest rank.
func (a *Authority) leaveOut() {
	for pairs := a.unreachable; len(pairs) > 0; {
		count := map[string]int{}
		for _, p := range pairs {
			count[p[0]]++
			count[p[1]]++
		}
		worst := a.members[0]
		for _, n := range a.members {
			if count[n.ID] > 0 && count[n.ID] >= count[worst.ID] {
				worst = n
			}
		}
		if count[worst.ID] == 0 {
			return // the pairs name none of our nodes
		}
		pairs = slices.DeleteFunc(pairs, func(p [2]string) bool { return p[0] == worst.ID || p[1] == worst.ID })
		x := a.quarantined[worst.ID]
		if x.incarnation != worst.Incarnation {
			x = quarantine{incarnation: worst.Incarnation, wait: a.cfg.Quarantine / 2}
		}
		x.wait = min(2*x.wait, 32*a.cfg.Quarantine)
		x.until = a.now + x.wait
		a.quarantined[worst.ID] = x
		a.reason = fmt.Sprintf("node %s and others cannot reach each other: it is left out for %v", worst.ID, x.wait)
	}
}
