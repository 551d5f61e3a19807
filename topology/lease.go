package topology

import (
	"fmt"
	"time"
)

// Claim is the store's record of the coordinator and of its last decision. It is one record that
// changes only by compare-and-swap on its revision. So the right to decide and the decision cannot
// diverge: the write of a placement also proves that no other process has taken the lease.
type Claim struct {
	Term        uint64 `json:"term"` // grows with each new holder
	Holder      string `json:"holder"`
	Incarnation uint64 `json:"incarnation"` // of its process
	API         string `json:"api,omitempty"`
	Beat        uint64 `json:"beat"` // grows with each write of a holder
	// Placement is the newest one that any node may have received, with the incarnations of its nodes
	// in rank order.
	Placement    Placement `json:"placement"`
	Incarnations []uint64  `json:"incarnations,omitempty"`
	// Drained lists the nodes that must take no part, with their incarnations.
	Drained map[string]uint64 `json:"drained,omitempty"`
}

// Effects of a Lease, in order. At most one read or write is in flight. Each is answered by exactly
// one of ReadDone, WriteDone, WriteConflict and OutcomeUnknown.
type (
	// LeaseEffect is one of the types below.
	LeaseEffect interface{ leaseEffect() }
	// ReadClaim: read the record. Answer: ReadDone or OutcomeUnknown.
	ReadClaim struct{}
	// WriteClaim: replace the record if its revision is After (0: there is no record). Answer:
	// WriteDone; WriteConflict if the revision differs; OutcomeUnknown after a timeout.
	WriteClaim struct {
		Claim Claim
		After uint64
	}
	// Elected: this process coordinates and continues with the placement in Claim.
	Elected struct {
		Claim    Claim
		Revision uint64
	}
	// Recorded: nodes may receive the placement of an epoch. It is in the store. If Unwritten, the
	// store accepts no writes (WriteTimeout) and the write is still retried.
	Recorded struct {
		Epoch     uint32
		Unwritten bool
	}
	// DrainedRecorded: a write that follows a call of Lease.Drained is done. Nodes are the drained nodes in the record.
	DrainedRecorded struct{ Nodes map[string]uint64 }
	// Deposed: another holder has the lease. No more effects follow.
	Deposed struct{ By Claim }
)

func (ReadClaim) leaseEffect()  {}
func (WriteClaim) leaseEffect() {}
func (Elected) leaseEffect()    {}
func (Recorded) leaseEffect()   {}
func (Deposed) leaseEffect()    {}

func (DrainedRecorded) leaseEffect() {}

type LeaseConfig struct {
	Holder      string
	Incarnation uint64
	API         string
	// TTL is how long the record must stay unchanged before another process may claim it. Hint
	// replaces TTL once the holder is known to be gone. Renew is the interval in which a holder
	// writes and a candidate reads.
	TTL, Hint, Renew time.Duration
	// Successor: this process succeeds the record's holder without waiting, if the record names
	// this Holder with another incarnation. That process is known to be dead, because we hold the lock
	// of its data directory.
	Successor bool
	// Exclusive: no other live process can write this store.
	Exclusive bool
	// WriteTimeout is how long an Exclusive holder waits for a store that accepts no writes before
	// it continues without it. Epochs then rest on the nodes' reports, and no other process can be
	// elected meanwhile. 0: it waits for ever.
	WriteTimeout time.Duration
	// Bootstrap: create the first record if there is none.
	Bootstrap bool
}

// Lease decides which process coordinates; this is the pure half. Safety rests on the
// compare-and-swap alone. Clocks only decide how soon a process tries.
type Lease struct {
	cfg LeaseConfig
	now time.Duration

	revision       uint64        // of the record as last read or written
	claim          Claim         // that record
	unchangedSince time.Duration // when the record was first read with this revision
	unchangedKnown bool          // unchangedSince is valid
	lost           uint64        // incarnation of a holder that is known to be dead or unreachable

	busy          bool          // a read or write is in flight
	writingSince  time.Duration // of the oldest write that is not done; -1: none
	timedOutSince time.Duration // the same, once that write has timed out
	pending       *Claim        // the write whose outcome is unknown
	beat          uint64        // of the last attempt
	retryAt       time.Duration // no read or write before this time
	holding       bool
	over          bool
	want          *Claim // the newest placement to write
	announced     uint32 // newest epoch for which Recorded was returned
	drained       map[string]uint64
	// Numbers of calls of Drained: all, those that the newest write has, and those that the record has.
	drains, drainsPending, drainsRecorded uint64
}

// NewLease returns a lease without knowledge of the record. Tick starts it.
func NewLease(cfg LeaseConfig) *Lease { return &Lease{cfg: cfg, writingSince: -1, timedOutSince: -1} }

// Holding reports whether this process coordinates, by its newest reading of the record.
func (l *Lease) Holding() bool { return l.holding && !l.over }

// Claim returns the record as this process last read or wrote it, with its revision.
func (l *Lease) Claim() (Claim, uint64) { return l.claim, l.revision }

// Tick advances the clock, which never goes back.
func (l *Lease) Tick(now time.Duration) []LeaseEffect {
	l.now = max(l.now, now)
	return append(l.reportUnwritten(), l.next()...)
}

// reportUnwritten returns Recorded for a placement that the store does not accept.
func (l *Lease) reportUnwritten() []LeaseEffect {
	if !l.Unwritten() || l.want.Placement.Epoch <= l.announced {
		return nil
	}
	l.announced = l.want.Placement.Epoch
	return []LeaseEffect{Recorded{Epoch: l.announced, Unwritten: true}}
}

// Unwritten reports whether the newest placement is missing in the store because the store accepts no
// writes. If this process ends now, its successor cannot read that placement.
func (l *Lease) Unwritten() bool {
	return l.Holding() && l.cfg.Exclusive && l.cfg.WriteTimeout > 0 && l.want != nil && l.timedOutSince >= 0 &&
		l.now-l.timedOutSince >= l.cfg.WriteTimeout
}

// Moved reports that this process, the holder, has copied the record to another store, with its
// revision there. No other process may have used that store before.
func (l *Lease) Moved(revision uint64) { l.revision, l.cfg.Exclusive = revision, false }

// HolderLost reports that a holder's process is known to be dead or unreachable.
func (l *Lease) HolderLost(incarnation uint64) { l.lost = incarnation }

// Record requests the write of a placement. It replaces an earlier one that was not written yet.
func (l *Lease) Record(p Placement, incarnations []uint64) []LeaseEffect {
	if !l.Holding() {
		return nil
	}
	l.want = &Claim{Placement: p, Incarnations: incarnations}
	l.retryAt = l.now
	return append(l.reportUnwritten(), l.next()...)
}

// Drained sets the nodes that must take no part, for later coordinators too. It requests a write at
// once; every later write carries them. DrainedRecorded follows when the record has them. The map must not change
// afterwards.
func (l *Lease) Drained(nodes map[string]uint64) []LeaseEffect {
	if !l.Holding() {
		return nil
	}
	l.drained, l.retryAt = nodes, l.now
	l.drains++
	return l.next()
}

// ReadDone answers ReadClaim. Revision 0: there is no record.
func (l *Lease) ReadDone(c Claim, revision uint64) []LeaseEffect {
	l.busy = false
	if l.pending == nil || l.pending.Beat == c.Beat { // otherwise the store can be read but accepts no writes
		l.writingSince, l.timedOutSince = -1, -1
	}
	if l.over || revision < l.revision { // ignore an old copy
		return nil
	}
	if revision != l.revision || !l.unchangedKnown {
		l.unchangedSince, l.unchangedKnown = l.now, true
	}
	mine := revision > 0 && c.Holder == l.cfg.Holder && c.Incarnation == l.cfg.Incarnation
	if l.holding && !mine {
		l.over, l.claim, l.revision = true, c, revision
		return []LeaseEffect{Deposed{By: c}}
	}
	if t := l.pending; mine && t != nil && t.Beat == c.Beat {
		return l.WriteDone(revision) // the answer was lost, but not the write
	}
	// The attempted write is not there. If it arrives later, it finds another revision or a later
	// read finds it as ours.
	l.claim, l.revision, l.pending = c, revision, nil
	return append(l.applied(mine), l.next()...)
}

// WriteDone answers WriteClaim: the record is written and has this revision.
func (l *Lease) WriteDone(revision uint64) []LeaseEffect {
	l.busy, l.writingSince, l.timedOutSince = false, -1, -1
	if l.over || l.pending == nil {
		return nil
	}
	l.claim, l.revision, l.pending, l.unchangedSince = *l.pending, revision, nil, l.now
	out := l.applied(true)
	if l.drainsRecorded < l.drainsPending {
		l.drainsRecorded = l.drainsPending
		out = append(out, DrainedRecorded{Nodes: l.claim.Drained})
	}
	return append(out, l.next()...)
}

// applied returns the consequences of the current record.
func (l *Lease) applied(mine bool) (out []LeaseEffect) {
	if !mine {
		return nil
	}
	e := l.claim.Placement.Epoch
	if !l.holding {
		l.holding, l.announced, l.drained = true, e, l.claim.Drained
		out = append(out, Elected{Claim: l.claim, Revision: l.revision})
	}
	if l.want != nil && l.want.Placement.Epoch <= e {
		l.want = nil
	}
	if e > l.announced {
		l.announced = e
		out = append(out, Recorded{Epoch: e})
	}
	return out
}

// WriteConflict answers WriteClaim: the record has another revision, so this write will never take
// effect. A read shows the writer.
func (l *Lease) WriteConflict() []LeaseEffect {
	l.busy, l.writingSince, l.timedOutSince = false, -1, -1
	if l.over {
		return nil
	}
	l.pending = nil
	return l.read()
}

// OutcomeUnknown answers a read or write without a known outcome, so the record must be read again.
func (l *Lease) OutcomeUnknown() []LeaseEffect {
	l.busy, l.unchangedKnown = false, false // time without successful reads does not count
	l.timedOutSince = l.writingSince
	l.retryAt = l.now + l.cfg.Renew/2
	return nil
}

func (l *Lease) read() []LeaseEffect {
	l.busy, l.retryAt = true, l.now+l.cfg.Renew
	return []LeaseEffect{ReadClaim{}}
}

func (l *Lease) write(c Claim) []LeaseEffect {
	l.beat = max(l.beat, c.Beat) + 1 // every attempt is unique, so a late one is not mistaken for another
	c.Beat = l.beat
	if l.holding {
		c.Drained, l.drainsPending = l.drained, l.drains
	}
	l.busy, l.pending, l.retryAt = true, &c, l.now+l.cfg.Renew
	if l.writingSince < 0 {
		l.writingSince = l.now
	}
	return []LeaseEffect{WriteClaim{Claim: c, After: l.revision}}
}

// next decides which record to read or write, if any.
func (l *Lease) next() []LeaseEffect {
	switch {
	case l.over || l.busy:
		return nil
	case l.pending != nil && l.now >= l.retryAt: // its outcome decides the rest
		return l.read()
	case l.pending != nil:
		return nil
	case l.holding && l.want != nil:
		c := l.claim
		c.Placement, c.Incarnations = l.want.Placement, l.want.Incarnations
		return l.write(c)
	case l.holding && l.now >= l.retryAt:
		c := l.claim
		return l.write(c)
	case l.holding:
		return nil
	case l.unchangedKnown && l.free():
		c := l.claim
		c.Term++
		c.Holder, c.Incarnation, c.API = l.cfg.Holder, l.cfg.Incarnation, l.cfg.API
		return l.write(c)
	case l.now >= l.retryAt:
		return l.read()
	}
	return nil
}

// free reports whether the record may be claimed because no process renews it.
func (l *Lease) free() bool {
	if l.revision == 0 {
		return l.cfg.Bootstrap
	}
	still := l.now - l.unchangedSince
	switch {
	case l.cfg.Exclusive, l.cfg.Successor && l.claim.Holder == l.cfg.Holder:
		return true
	case l.lost == l.claim.Incarnation && still >= l.cfg.Hint:
		return true
	}
	return still >= l.cfg.TTL
}

// Waits returns a short reason why a candidate does not coordinate.
func (l *Lease) Waits() string {
	switch {
	case l.over:
		return "the lease was lost"
	case l.holding:
		return ""
	case !l.unchangedKnown:
		return "the store does not answer"
	case l.revision == 0:
		return "nobody has founded the store yet"
	}
	return fmt.Sprintf("%s coordinates (term %d)", l.claim.Holder, l.claim.Term)
}
