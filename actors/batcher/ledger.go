package batcher

import (
	"fmt"

	"github.com/shoal-llm/shoal/actors/batcher/booking"
	"github.com/shoal-llm/shoal/actors/batcher/prefillgroup"
	"github.com/shoal-llm/shoal/actors/batcher/prefix"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/layered"
	"github.com/shoal-llm/shoal/internal/engine/pooling"
)

// ledger counts the cache bytes of every socket. It reserves exactly the peak of the bytes that the
// stores of package kvcache allocate in each phase.
type ledger struct {
	g       kvcache.Geometry
	prefill booking.Prefill
	sockets []account
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

// need returns the bytes that a sequence needs on each socket.
func (l *ledger) need(d booking.Demand, owner int) []int64 {
	need := make([]int64, len(l.sockets))
	for i := range need {
		need[i] = d.Bytes(l.g, l.sockets[i].heads(), i == owner, l.sockets[i].Block)
	}
	return need
}

// choice is how a sequence can run: its owner, the bytes on each socket, and how its prompt is read. If
// it cannot, why describes the socket that lacks least.
type choice struct {
	owner int
	need  []int64
	shape layered.Shape
	why   string
}

// choose finds the owner for a request that begins with this number of shared blocks, and how its prompt
// is read.
func (l *ledger) choose(r *request, shared int) (c choice) {
	if d := &r.remote.Done; r.remote.Phase == prefillgroup.Ready {
		return l.chooseOwner(booking.Demand{Policy: r.Policy, Read: d.Tokens, Tokens: min(d.Tokens+1, r.final()), Arrives: true}, r.canOwn)
	}
	read, tokens := r.demand()
	for _, shape := range l.shapes(r, read, shared) {
		if c = l.chooseOwner(booking.Demand{Policy: r.Policy, Read: read, Tokens: tokens, Shared: shared, Shape: shape}, r.canOwn); c.why == "" {
			break
		}
	}
	return c
}

// chooseOwner finds the owner for a sequence. Only able sockets qualify, and the sequence must fit on
// every socket. It prefers the most free bytes, then the fewest sequences, then the lowest rank.
func (l *ledger) chooseOwner(d booking.Demand, able func(owner int) bool) choice {
	c := choice{owner: none, shape: d.Shape}
	var shortest int64
	for o := range l.sockets {
		if !able(o) || d.Shared > 0 && l.g.Units > 0 && l.sockets[o].heads() == 0 { // it has no rows of the shared blocks
			continue
		}
		n := l.need(d, o)
		if at, short := l.short(n); short > 0 {
			if c.why == "" || short < shortest {
				shortest = short
				c.why = fmt.Sprintf("needs %d cache bytes on %s, %d of %d are free", n[at], l.sockets[at].ID, l.sockets[at].room(), l.sockets[at].Budget)
			}
			continue
		}
		if c.owner < 0 || l.better(o, n[o], c.owner, c.need[c.owner]) {
			c.owner, c.need = o, n
		}
	}
	if c.owner >= 0 {
		c.why = ""
	}
	return c
}

func (l *ledger) better(a int, needA int64, b int, needB int64) bool {
	freeA, freeB := l.sockets[a].room()-needA, l.sockets[b].room()-needB
	if freeA != freeB {
		return freeA > freeB
	}
	return l.sockets[a].sequences < l.sockets[b].sequences
}

// short returns the socket that lacks the most bytes for need, and these bytes; 0: it fits everywhere.
func (l *ledger) short(need []int64) (at int, bytes int64) {
	for i := range l.sockets {
		if s := need[i] - l.sockets[i].room(); s > bytes {
			at, bytes = i, s
		}
	}
	return at, bytes
}

// ableOwners finds the owners that can run a request with this output to its end without other
// requests, even if it must be rebuilt just before its last token; if none can, why says the
// reason. Only these are ever chosen, so a sequence that runs alone can always grow.
func (l *ledger) ableOwners(r *request, output int) (able []bool, why string) {
	empty := ledger{g: l.g, prefill: l.prefill, sockets: make([]account, len(l.sockets))}
	for i := range l.sockets {
		empty.sockets[i].Socket = l.sockets[i].Socket
	}
	final := len(r.Prompt) + max(output, 1) - 1
	read := r.context()
	if r.Policy.RebuildsByPrefill() {
		read = final
	}
	if r.Pool != pooling.None {
		final = 0
	}
	able = make([]bool, len(l.sockets))
	for _, shape := range empty.shapes(r, read, 0) {
		d := booking.Demand{Policy: r.Policy, Read: read, Tokens: final, Shape: shape}
		for o := range able {
			_, short := empty.short(empty.need(d, o))
			able[o] = able[o] || short == 0
		}
		why = empty.chooseOwner(d, anyOwner).why
	}
	return able, why
}

func anyOwner(int) bool { return true }

// largestOutput returns the most output tokens that would fit, -1 when the prompt alone does not.
func (l *ledger) largestOutput(r *request) int {
	fits := func(output int) bool {
		_, why := l.ableOwners(r, output)
		return why == ""
	}
	if !fits(0) {
		return -1
	}
	lo, hi := 0, r.limit
	for lo < hi {
		mid := lo + (hi-lo+1)/2
		if fits(mid) {
			lo = mid
		} else {
			hi = mid - 1
		}
	}
	return lo
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
