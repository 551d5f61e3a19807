package batcher

import (
	"github.com/shoal-llm/shoal/actors/batcher/booking"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/pooling"
)

// cuts is the module for sequences whose cache fits no single socket, but all sockets together
// (docs/decisions/cache-layout.md). Such a sequence is never handed over: every socket keeps the rows of its KV
// heads, and a token that the owner samples is read like one more token of the prompt. Rows of prompts and of
// decode have the same bits, so answers do not depend on the cut.
type cuts struct {
	s    *State
	need []int64 // of grow, to keep its memory
}

// cutting is the state of a request that may be cut over the sockets.
type cutting struct {
	must bool // cut it at its next admission: no socket can own its whole cache, or it uses a context that is cut
	now  bool // it is admitted and cut
}

// fitsBlocks reports whether a request that must be cut fits together with the blocks that it shares. These count
// as pinned, so they are not evicted for the request.
func (x *cuts) fitsBlocks(r *request) bool {
	if !r.cut.must {
		return false
	}
	chain := x.s.prefix.find(r)
	defer x.s.prefix.tree.Hold(chain)()
	return x.s.ledger.choose(r, len(chain)).Why == ""
}

// canBeCut reports whether a request may run cut: its policy keeps and reads every token, it is not pooled or a
// read for a decode group, and the model has no latent attention, whose one KV head cannot be divided (Units).
func (l *ledger) canBeCut(r *request) bool {
	return r.Policy.RebuildsByPrefill() && r.Pool == pooling.None && r.Prefill == 0 && l.g.Units == 0
}

// usesCut reports whether a request makes or uses a fixed context whose cache is cut over the sockets. Its blocks stay
// on every socket, and requests share them.
func (r *request) usesCut() bool {
	return r.Context > 0 && r.Session == "" && r.Policy.RebuildsByPrefill()
}

// place records which sockets can own a request, and whether it must be cut.
func (l *ledger) place(r *request) {
	if r.Open {
		l.leaseOf(r)
		return
	}
	r.able, r.cut.must, r.unfit = l.ableOwners(r, r.limit)
}

// fitsCut returns why the sockets together cannot hold a sequence of this number of tokens; "": they can.
func (l *ledger) fitsCut(r *request, tokens int) (why string) {
	d := booking.Demand{Policy: r.Policy, Read: tokens, Tokens: tokens, Cut: true, Least: len(r.Prompt)}
	return d.Choose(l.g, l.ranks(true), func(int) bool { return true }).Why
}

// known returns the number of tokens of the prompt and the output so far.
func (r *request) known() int { return len(r.Prompt) + len(r.out) }

// decodesCut reports whether the next row of a cut sequence is the token that it sampled last.
func (r *request) decodesCut() bool {
	return r.cut.now && !r.ended && !r.holdsContext() && len(r.out) > 0 && r.cached+1 == r.read
}

// plan adds the next row of each cut sequence that decodes. It returns their number.
func (x *cuts) plan(p *plan.Plan, rows map[uint64]*request) (n int) {
	for _, r := range x.s.running {
		if r.decodesCut() && !r.stalled {
			n += x.s.chunk(p, r, 1)
			rows[r.seq] = r
		}
	}
	return n
}

// grow books the bytes of the next row of a cut sequence on every socket. It preempts others like growAll.
func (x *cuts) grow(r *request) {
	x.need = x.need[:0]
	for rank := range x.s.ledger.sockets {
		bytes := x.s.ledger.cutGrowth(r, rank)
		if !x.s.residency.vacate(r, rank, bytes) {
			return
		}
		x.need = append(x.need, bytes)
	}
	r.waits = 0
	for rank, bytes := range x.need {
		r.booked[rank] += bytes
		x.s.ledger.sockets[rank].reserved += bytes
	}
}

// cutGrowth returns the bytes for the next token of a cut sequence on a socket, beyond those booked.
func (l *ledger) cutGrowth(r *request, rank int) int64 {
	a, tokens := &l.sockets[rank], r.cached+1
	d := booking.Demand{Policy: r.Policy, Read: tokens, Tokens: tokens, Shared: len(r.prefix.Blocks), Cut: true}
	return max(0, d.Bytes(l.g, a.heads(), rank == r.owner, a.Block)-r.booked[rank])
}

// read processes the result of the last known token of a cut sequence.
func (x *cuts) read(r *request) {
	x.s.clusters.promptRead(r)
	r.read = max(r.read, r.known())
}
