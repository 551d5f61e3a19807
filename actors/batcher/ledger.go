package batcher

import (
	"fmt"
	"slices"
	"sort"

	"github.com/shoal-llm/shoal/actors/batcher/booking"
	"github.com/shoal-llm/shoal/actors/batcher/prefillgroup"
	"github.com/shoal-llm/shoal/actors/batcher/prefix"
	"github.com/shoal-llm/shoal/actors/batcher/saved"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/pooling"
)

// ledger counts the cache bytes of every socket. It reserves exactly the peak of the bytes that the
// stores of package kvcache allocate in each phase.
type ledger struct {
	g          kvcache.Geometry
	prefill    booking.Prefill
	sockets    []account
	firstLease int       // firstLease, or less in tests
	largest    []account // empty: those of the placement with the most memory so far
}

// placed takes the sockets of a new placement.
func (l *ledger) placed(sockets []account) {
	if l.sockets = sockets; budget(sockets) > budget(l.largest) {
		l.largest = slices.Clone(sockets)
	}
}

// budget returns the cache memory of sockets.
func budget(sockets []account) (sum int64) {
	for i := range sockets {
		sum += sockets[i].Budget
	}
	return sum
}

// with returns the ledger of a placement on other sockets. It is for questions about memory without other requests.
func (l *ledger) with(sockets []account) *ledger {
	return &ledger{g: l.g, prefill: l.prefill, sockets: sockets, firstLease: l.firstLease}
}

// outgrown reports whether an earlier placement had memory for a request that no longer fits.
func (l *ledger) outgrown(r *request) bool {
	_, _, now := l.ableOwners(r, r.limit)
	_, _, then := l.with(l.largest).ableOwners(r, r.limit)
	return now != "" && then == ""
}

type account struct {
	Socket
	prefix.Memory
	reserved  int64
	freed     int64 // bytes freed by hand-overs while their sequences continued
	replicas  int64 // portion of reserved for replicas
	copies    int64 // portion of reserved for copies of recurrent states, which can be dropped
	sequences int   // number of sequences that it owns
	files     int64 // bytes of Scratch in use
	used      int64 // measured bytes; -1: unknown
}

func (a *account) free() int64 { return a.Budget - a.reserved - a.Shared }

// Free implements prefix.Ledger.
func (l *ledger) Free(rank int) int64 { return l.sockets[rank].free() }

// room returns the bytes that are free, or would be without the prefix cache and copies of states.
func (a *account) room() int64 { return a.free() + a.Evictable + a.copies }

func (a *account) heads() int { return a.Heads.Hi - a.Heads.Lo }

// ranks describes the sockets for the choice of an owner: with their sequences, or with none.
func (l *ledger) ranks(empty bool) []booking.Rank {
	ranks := make([]booking.Rank, len(l.sockets))
	for i := range ranks {
		a := &l.sockets[i]
		ranks[i] = booking.Rank{ID: a.ID, Budget: a.Budget, Room: a.room(), Heads: a.heads(), Block: a.Block, Sequences: a.sequences}
		if empty {
			ranks[i].Room, ranks[i].Sequences = a.Budget, 0
		}
	}
	return ranks
}

// choose finds the owner for a request that begins with this number of shared blocks, and how its prompt
// is read. If no socket has room, replicas make room, except for a cache that arrives: sockets drop replicas with the next
// step only.
func (l *ledger) choose(r *request, shared int) (c booking.Choice) {
	ranks := l.ranks(false)
	if d := &r.remote.Done; r.remote.Phase == prefillgroup.Ready {
		demand := booking.Demand{Policy: r.Policy, Read: d.Tokens, Tokens: min(d.Tokens+1, r.final()), Arrives: true}
		return demand.Choose(l.g, ranks, r.canOwn)
	}
	if f := &r.saved.Found; r.saved.Phase == saved.Located {
		demand := booking.Demand{Policy: r.Policy, Read: f.Prompt, Tokens: min(f.Tokens+1, r.final()), Arrives: true}
		return demand.Choose(l.g, ranks, func(rank int) bool { return rank == f.Rank && r.canOwn(rank) })
	}
	if c = l.chooseAmong(r, shared, ranks); c.Why == "" {
		return c
	}
	replicas := int64(0)
	for i := range ranks {
		ranks[i].Room += l.sockets[i].replicas
		replicas += l.sockets[i].replicas
	}
	if replicas > 0 {
		c = l.chooseAmong(r, shared, ranks)
	}
	return c
}

// chooseAmong finds the owner for a request whose prompt the sockets read.
func (l *ledger) chooseAmong(r *request, shared int, ranks []booking.Rank) (c booking.Choice) {
	read, tokens := r.demand()
	for _, shape := range l.shapes(r, read, shared, false) {
		demand := booking.Demand{Policy: r.Policy, Read: read, Tokens: tokens, Shared: shared, Shape: shape, Cut: r.cut.must}
		if c = demand.Choose(l.g, ranks, r.canOwn); c.Why == "" {
			break
		}
	}
	return c
}

// ableOwners finds the owners that can run a request with this output to its end without other
// requests, even if it must be rebuilt just before its last token. If none can, and all sockets together can
// hold it, it must be cut, and any can own it. Otherwise why is the reason. Only able sockets are ever chosen, so
// a sequence that runs alone can always grow.
func (l *ledger) ableOwners(r *request, output int) (able []bool, cut bool, why string) {
	final := len(r.Prompt) + max(output, 1) - 1
	read, least := r.context(), 0
	if r.Policy.RebuildsByPrefill() {
		read, least = final, len(r.Prompt)
	}
	if r.Pool != pooling.None {
		final = 0
	}
	ranks := l.ranks(true)
	able = make([]bool, len(ranks))
	for _, shape := range l.shapes(r, read, 0, true) {
		d := booking.Demand{Policy: r.Policy, Read: read, Tokens: final, Shape: shape, Least: least}
		for o := range able {
			able[o] = able[o] || d.Fits(l.g, ranks, o)
		}
		why = d.Choose(l.g, ranks, func(int) bool { return true }).Why
	}
	switch {
	case !l.canBeCut(r):
		switch {
		case why == "" || len(ranks) == 1 || l.g.Units > 0 || r.Prefill != 0:
		case r.Pool != pooling.None:
			why += "; a cache for a vector or a score is not cut over nodes"
		case !r.Policy.Evicts():
			why += fmt.Sprintf("; only a cache under full is cut over nodes, not one under %s", r.Policy.Name())
		}
		return able, false, why
	case !r.usesCut() && (why == "" || len(ranks) == 1):
		return able, false, why
	}
	if cutWhy := l.fitsCut(r, final); cutWhy != "" {
		if why == "" {
			why = "fits a node whole, but its context is cut"
		}
		return able, false, fmt.Sprintf("%s; cut over all nodes it %s", why, cutWhy)
	}
	for o := range able {
		able[o] = true
	}
	return able, true, ""
}

// largestOutput returns the most output tokens that would fit, up to most; -1 when the prompt alone does not.
func (l *ledger) largestOutput(r *request, most int) int {
	return sort.Search(most+1, func(output int) bool {
		_, _, why := l.ableOwners(r, output)
		return why != ""
	}) - 1
}

// promptRoom returns how many of the last tokens of a prompt fit with MaxTokens of output; all of them without sockets.
func (l *ledger) promptRoom(spec Spec) int {
	if len(l.sockets) == 0 {
		return len(spec.Prompt)
	}
	fits := func(n int) bool {
		r := &request{Spec: spec}
		r.Prompt = spec.Prompt[len(spec.Prompt)-n:]
		r.Policy = spec.Policy.For(n)
		_, _, why := l.ableOwners(r, spec.MaxTokens)
		return why == ""
	}
	if fits(len(spec.Prompt)) {
		return len(spec.Prompt)
	}
	return sort.Search(len(spec.Prompt), func(n int) bool { return n > 0 && !fits(n) }) - 1
}

// admit books the bytes of a request.
func (l *ledger) admit(r *request, owner int, need []int64) {
	r.owner, r.booked = owner, need
	for i := range l.sockets {
		l.sockets[i].reserved += need[i]
		l.sockets[i].files += r.sweeping.files
	}
	l.sockets[owner].sequences++
}

// handedOver books the end of prefill: only the owner keeps bytes, including shared blocks if the
// policy keeps every token.
func (l *ledger) handedOver(r *request) {
	l.handBlocksOver(r)
	for i := range l.sockets {
		keep := int64(0)
		if i == r.owner {
			keep = min(r.booked[i], kvcache.ResidentBytes(l.g, r.read, min(r.read+1, r.final()), r.Policy)-l.sharedBytes(r))
		}
		l.sockets[i].reserved -= r.booked[i] - keep
		l.sockets[i].freed += r.booked[i] - keep
		r.booked[i] = keep
	}
}

// growth returns the additional bytes for a decode row of this number of tokens, beyond those
// booked. It is negative after a row with more tokens.
func (l *ledger) growth(r *request, tokens int) int64 {
	return l.stepBytes(r, r.cached+tokens, tokens) - r.booked[r.owner] - l.sharedBytes(r) - r.shares.size()
}

func (l *ledger) grow(r *request, bytes int64) {
	r.booked[r.owner] += bytes
	l.sockets[r.owner].reserved += bytes
	if r.resides.replica != none {
		r.booked[r.resides.replica] += bytes
		l.sockets[r.resides.replica].reserved += bytes
		l.sockets[r.resides.replica].replicas += bytes
	}
}

// release frees all bytes of a request.
func (l *ledger) release(r *request) {
	if r.resides.replica != none {
		l.removeReplica(r)
	}
	for i, bytes := range r.booked {
		l.sockets[i].reserved -= bytes
	}
	if r.prefix.copy.booked {
		l.moveCopy(r, -1)
		r.prefix.copy = stateCopy{}
	}
	l.releaseBlocks(r)
	l.endSweeps(r)
	l.sockets[r.owner].files -= r.resides.file.bytes
	r.resides.file = inFile{}
	l.sockets[r.owner].sequences--
	r.booked = nil
	if c := r.shares; c != nil {
		if c.users--; c.users == 0 {
			l.sockets[r.owner].reserved -= c.bytes
		}
		r.shares = nil
	}
}
