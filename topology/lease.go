package topology

import (
	"fmt"
	"time"
)

// Claim is what the store holds of who coordinates and what was decided last:
// one record, which changes by compare-and-swap on its revision alone. So the
// right to decide and the decision cannot part: whoever writes a placement
// proves with the same write that nobody has taken the lease from it.
type Claim struct {
	Term        uint64 `json:"term"` // grows with each holder
	Holder      string `json:"holder"`
	Incarnation uint64 `json:"incarnation"` // of its process
	API         string `json:"api,omitempty"`
	Beat        uint64 `json:"beat"` // grows with each write of a holder
	// Placement is the newest one that anybody may have been told of, with the
	// incarnations of its nodes in rank order.
	Placement    Placement `json:"placement"`
	Incarnations []uint64  `json:"incarnations,omitempty"`
	// Drained are the nodes that are to take no part, with their incarnation.
	Drained map[string]uint64 `json:"drained,omitempty"`
}

// Effects of a Lease, to be carried out in order. At most one read or write is
// under way; each is answered by exactly one of Saw, Wrote, Refused and Unsure.
type (
	// LeaseEffect is one of the types below.
	LeaseEffect interface{ leaseEffect() }
	// ReadClaim: read the record. Answer: Saw or Unsure.
	ReadClaim struct{}
	// WriteClaim: replace the record if its revision is After (0: there is none).
	// Answer: Wrote, Refused if the revision is another, Unsure after silence.
	WriteClaim struct {
		Claim Claim
		After uint64
	}
	// Elected: this process coordinates, and goes on from the placement in Claim.
	Elected struct {
		Claim    Claim
		Revision uint64
	}
	// Recorded: nodes may be told of the placement of an epoch. It is in the store,
	// or owed to it: the store takes nothing (Waive), and the write is still tried.
	Recorded struct {
		Epoch uint32
		Owed  bool
	}
	// Deposed: another holder has the lease. Nothing follows.
	Deposed struct{ By Claim }
)

func (ReadClaim) leaseEffect()  {}
func (WriteClaim) leaseEffect() {}
func (Elected) leaseEffect()    {}
func (Recorded) leaseEffect()   {}
func (Deposed) leaseEffect()    {}

type LeaseConfig struct {
	Holder      string
	Incarnation uint64
	API         string
	// TTL is how long the record must stand still before another process may
	// claim it; Hint is the same once the holder is known to be gone. Renew is how
	// often a holder writes and a candidate reads.
	TTL, Hint, Renew time.Duration
	// Heir: a record of this Holder with another incarnation is of a process that
	// is known to be dead (its data directory's lock is ours): no wait.
	Heir bool
	// Sole: no other process can be alive that writes this store.
	Sole bool
	// Waive is for how long a Sole holder waits for a store that takes nothing before
	// it goes on without. Epochs then rest on what nodes report; nobody else can be
	// elected meanwhile. 0: it waits for ever.
	Waive time.Duration
	// Found: write the first record when there is none.
	Found bool
}

// Lease says who coordinates: the pure half of it. Safety rests on the compare-
// and-swap alone; clocks only decide how soon somebody tries.
type Lease struct {
	cfg LeaseConfig
	now time.Duration

	revision uint64        // of the record as last seen or written
	claim    Claim         // that record
	quiet    time.Duration // since when the record has stood still while it could be read
	watched  bool          // quiet counts
	gone     uint64        // incarnation of a holder that is known to be gone

	busy    bool          // a read or write is under way
	sent    time.Duration // of the first write since the last one that was done; -1: there is none
	silent  time.Duration // the same, once it is known that it was not answered
	tried   *Claim        // the write whose fate is not known yet
	beat    uint64        // of the last try
	again   time.Duration // no read or write before
	holding bool
	over    bool
	want    *Claim // placement to record, of the newest epoch
	told    uint32 // newest epoch that Recorded was said of
	drained map[string]uint64
}

// NewLease knows nothing yet; Tick starts it.
func NewLease(cfg LeaseConfig) *Lease { return &Lease{cfg: cfg, sent: -1, silent: -1} }

// Holding tells that this process coordinates as far as it knows.
func (l *Lease) Holding() bool { return l.holding && !l.over }

// Claim is the record as this process last saw or wrote it, with its revision.
func (l *Lease) Claim() (Claim, uint64) { return l.claim, l.revision }

// Tick moves the clock, which never goes back.
func (l *Lease) Tick(now time.Duration) []LeaseEffect {
	l.now = max(l.now, now)
	return append(l.waive(), l.next()...)
}

// waive lets a holder go on whose placement the store does not take.
func (l *Lease) waive() []LeaseEffect {
	if !l.Owing() || l.want.Placement.Epoch <= l.told {
		return nil
	}
	l.told = l.want.Placement.Epoch
	return []LeaseEffect{Recorded{Epoch: l.told, Owed: true}}
}

// Owing tells that the newest placement is not in the store and that the store takes
// nothing: if this process ends now, its successor does not know of it.
func (l *Lease) Owing() bool {
	return l.Holding() && l.cfg.Sole && l.cfg.Waive > 0 && l.want != nil && l.silent >= 0 && l.now-l.silent >= l.cfg.Waive
}

// Moved tells that the record was carried to another store by this process, its
// holder, and has a revision there. Nobody else may have had that store before.
func (l *Lease) Moved(revision uint64) { l.revision, l.cfg.Sole = revision, false }

// Gone tells that the process of a holder is known to be dead or unreachable.
func (l *Lease) Gone(incarnation uint64) { l.gone = incarnation }

// Record asks to write a placement down. One that was not written yet is
// dropped: only the newest counts.
func (l *Lease) Record(p Placement, incarnations []uint64) []LeaseEffect {
	if !l.Holding() {
		return nil
	}
	l.want = &Claim{Placement: p, Incarnations: incarnations}
	l.again = l.now
	return append(l.waive(), l.next()...)
}

// Drained says which nodes are to take no part, for whoever comes after: the next
// write, which is due now, carries it. The map is not changed any more.
func (l *Lease) Drained(nodes map[string]uint64) []LeaseEffect {
	if !l.Holding() {
		return nil
	}
	l.drained, l.again = nodes, l.now
	return l.next()
}

// Saw answers ReadClaim; revision 0: there is no record.
func (l *Lease) Saw(c Claim, revision uint64) []LeaseEffect {
	l.busy = false
	if l.tried == nil || l.tried.Beat == c.Beat { // else it can be read, and takes nothing
		l.sent, l.silent = -1, -1
	}
	if l.over || revision < l.revision { // an old copy says nothing
		return nil
	}
	if revision != l.revision || !l.watched {
		l.quiet, l.watched = l.now, true
	}
	mine := revision > 0 && c.Holder == l.cfg.Holder && c.Incarnation == l.cfg.Incarnation
	if l.holding && !mine {
		l.over, l.claim, l.revision = true, c, revision
		return []LeaseEffect{Deposed{By: c}}
	}
	if t := l.tried; mine && t != nil && t.Beat == c.Beat {
		return l.Wrote(revision) // the answer was lost, the write was not
	}
	// The write that was tried is not there. Should it still arrive, it finds
	// another revision, or is found by a later read: as ours.
	l.claim, l.revision, l.tried = c, revision, nil
	return append(l.took(mine), l.next()...)
}

// Wrote answers WriteClaim: it is there, under a revision.
func (l *Lease) Wrote(revision uint64) []LeaseEffect {
	l.busy, l.sent, l.silent = false, -1, -1
	if l.over || l.tried == nil {
		return nil
	}
	l.claim, l.revision, l.tried, l.quiet = *l.tried, revision, nil, l.now
	return append(l.took(true), l.next()...)
}

// took says what follows from the record as it is now.
func (l *Lease) took(mine bool) (out []LeaseEffect) {
	if !mine {
		return nil
	}
	e := l.claim.Placement.Epoch
	if !l.holding {
		l.holding, l.told, l.drained = true, e, l.claim.Drained
		out = append(out, Elected{Claim: l.claim, Revision: l.revision})
	}
	if l.want != nil && l.want.Placement.Epoch <= e {
		l.want = nil
	}
	if e > l.told {
		l.told = e
		out = append(out, Recorded{Epoch: e})
	}
	return out
}

// Refused answers WriteClaim: the record has another revision, so the write is
// not there and never will be. Who has written it shows when it is read.
func (l *Lease) Refused() []LeaseEffect {
	l.busy, l.sent, l.silent = false, -1, -1
	if l.over {
		return nil
	}
	l.tried = nil
	return l.read()
}

// Unsure answers either: nobody knows, so the record is to be read.
func (l *Lease) Unsure() []LeaseEffect {
	l.busy, l.watched = false, false // time in which the record cannot be read does not count
	l.silent = l.sent
	l.again = l.now + l.cfg.Renew/2
	return nil
}

func (l *Lease) read() []LeaseEffect {
	l.busy, l.again = true, l.now+l.cfg.Renew
	return []LeaseEffect{ReadClaim{}}
}

func (l *Lease) write(c Claim) []LeaseEffect {
	l.beat = max(l.beat, c.Beat) + 1 // no two tries are alike: a late one is not taken for another
	c.Beat = l.beat
	if l.holding {
		c.Drained = l.drained
	}
	l.busy, l.tried, l.again = true, &c, l.now+l.cfg.Renew
	if l.sent < 0 {
		l.sent = l.now
	}
	return []LeaseEffect{WriteClaim{Claim: c, After: l.revision}}
}

// next decides what to read or write, if anything.
func (l *Lease) next() []LeaseEffect {
	switch {
	case l.over || l.busy:
		return nil
	case l.tried != nil && l.now >= l.again: // its fate decides the rest
		return l.read()
	case l.tried != nil:
		return nil
	case l.holding && l.want != nil:
		c := l.claim
		c.Placement, c.Incarnations = l.want.Placement, l.want.Incarnations
		return l.write(c)
	case l.holding && l.now >= l.again:
		c := l.claim
		return l.write(c)
	case l.holding:
		return nil
	case l.watched && l.free():
		c := l.claim
		c.Term++
		c.Holder, c.Incarnation, c.API = l.cfg.Holder, l.cfg.Incarnation, l.cfg.API
		return l.write(c)
	case l.now >= l.again:
		return l.read()
	}
	return nil
}

// free tells that the record may be claimed: nobody renews it.
func (l *Lease) free() bool {
	if l.revision == 0 {
		return l.cfg.Found
	}
	still := l.now - l.quiet
	switch {
	case l.cfg.Sole, l.cfg.Heir && l.claim.Holder == l.cfg.Holder:
		return true
	case l.gone == l.claim.Incarnation && still >= l.cfg.Hint:
		return true
	}
	return still >= l.cfg.TTL
}

// Waits says in a few words why a candidate does not coordinate.
func (l *Lease) Waits() string {
	switch {
	case l.over:
		return "the lease was lost"
	case l.holding:
		return ""
	case !l.watched:
		return "the store does not answer"
	case l.revision == 0:
		return "nobody has founded the store yet"
	}
	return fmt.Sprintf("%s coordinates (term %d)", l.claim.Holder, l.claim.Term)
}
