package events

import (
	"cmp"
	"slices"
	"time"

	"github.com/shoal-llm/shoal/actors/batcher"
	"github.com/shoal-llm/shoal/client/wire"
	"github.com/shoal-llm/shoal/topology"
)

// keptEvents is the size of the log: some days of a healthy cluster, hours of a troubled one.
const keptEvents = 256

// State has the newest events of a cluster.
type State struct {
	events   []wire.ClusterEvent // oldest first; events with a cost are replaced, never modified
	id       uint64              // of the newest event
	revision uint64
	epoch    uint32
}

// restore continues the log of an earlier coordinator. Costs that it had not completed stay as they
// were.
func (l *State) restore(events []wire.ClusterEvent) {
	slices.SortFunc(events, func(a, b wire.ClusterEvent) int { return cmp.Compare(a.ID, b.ID) })
	l.events = slices.Clone(events[max(0, len(events)-keptEvents):])
	for i := range l.events {
		e := &l.events[i]
		l.id, l.revision, l.epoch = max(l.id, e.ID), max(l.revision, e.Revision), max(l.epoch, e.Epoch)
		if e.Cost != nil && e.Cost.Open {
			c := *e.Cost
			c.Open, e.Cost = false, &c
		}
	}
}

// Add appends an event and gives it the next id and revision.
func (l *State) Add(e wire.ClusterEvent) {
	l.id++
	l.revision++
	l.epoch = max(l.epoch, e.Epoch)
	e.ID, e.Revision, e.Epoch = l.id, l.revision, l.epoch
	if len(l.events) == keptEvents {
		l.events = append(l.events[:0:0], l.events[1:]...)
	}
	l.events = append(l.events, e)
}

// addNodeEvent adds an event of a node. If only a failed step was known so far, the loss of the node
// becomes the reason why that placement ended.
func (l *State) addNodeEvent(at time.Time, kind, node, reason string) {
	if e := l.openOutage(); e != nil && e.Kind == topology.KindStep &&
		(kind == topology.KindLost || kind == topology.KindFenced || kind == topology.KindRefused) {
		e.Kind, e.Node, e.Reason = kind, node, reason
		l.touch(e)
		return
	}
	l.Add(wire.ClusterEvent{At: at, Kind: kind, Node: node, Reason: reason})
}

// ended records that a placement no longer serves.
func (l *State) ended(at time.Time, w topology.Withdraw) {
	l.Add(wire.ClusterEvent{At: at, Kind: w.Kind, Node: w.Node, Reason: w.Reason, Cost: &wire.Cost{Open: true}})
}

// serves records that a placement serves.
func (l *State) serves(at time.Time, epoch uint32, sockets int) {
	l.epoch = max(l.epoch, epoch)
	e := l.openOutage()
	if e == nil {
		l.Add(wire.ClusterEvent{At: at, Kind: wire.EventServing, Epoch: epoch, Sockets: sockets})
		return
	}
	c := *e.Cost
	c.NextEpoch, c.StallMillis = epoch, at.Sub(e.At).Milliseconds()
	c.Open = e.Kind != wire.EventTakeover // this coordinator has no request that a takeover interrupted
	e.Cost, e.Sockets = &c, sockets
	l.touch(e)
}

// cost updates the newest end of a placement and reports whether it changed.
func (l *State) cost(o batcher.Outage) bool {
	at := slices.IndexFunc(l.events, func(e wire.ClusterEvent) bool { return e.Cost != nil && e.Cost.Open && e.Epoch == o.Epoch })
	if at < 0 {
		return l.settle(o.Epoch)
	}
	e := &l.events[at]
	c := *e.Cost
	c.Streams, c.Failed, c.Continued = o.Streams, o.Failed, o.Streams-o.Waiting-o.Failed
	c.SilentMillis, c.Recomputed, c.Replayed, c.RestoredCaches, c.RestoredReplicas = o.SilentMillis,
		o.Recomputed, o.Replayed, o.Restored, o.Copies
	c.Open = c.NextEpoch == 0 || o.Waiting > 0
	if c == *e.Cost {
		return l.settle(o.Epoch)
	}
	e.Cost = &c
	l.touch(e)
	l.settle(o.Epoch)
	return true
}

// settle closes costs that a later outage has taken over.
func (l *State) settle(newest uint32) (changed bool) {
	for i := range l.events {
		if e := &l.events[i]; e.Cost != nil && e.Cost.Open && e.Epoch < newest {
			c := *e.Cost
			c.Open, e.Cost, changed = false, &c, true
			l.touch(e)
		}
	}
	return changed
}

// openOutage returns the newest end of a placement while no other one serves, else nil.
func (l *State) openOutage() *wire.ClusterEvent {
	for i := len(l.events) - 1; i >= 0; i-- {
		if e := &l.events[i]; e.Cost != nil {
			if e.Cost.Open && e.Cost.NextEpoch == 0 {
				return e
			}
			return nil
		}
	}
	return nil
}

func (l *State) touch(e *wire.ClusterEvent) {
	l.revision++
	e.Revision = l.revision
}

// after returns the events that are newer than a revision or changed since, ordered by revision.
func (l *State) after(revision uint64) []wire.ClusterEvent {
	if revision > l.revision { // of a log that this one does not continue
		revision = 0
	}
	out := slices.DeleteFunc(slices.Clone(l.events), func(e wire.ClusterEvent) bool { return e.Revision <= revision })
	slices.SortFunc(out, func(a, b wire.ClusterEvent) int { return cmp.Compare(a.Revision, b.Revision) })
	return out
}
