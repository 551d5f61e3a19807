package batcher

import (
	"math"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/plan"
)

// contexts is the module for fixed contexts. Some policies lay out a prompt once. With these, a
// request whose prompt begins with that of a running sequence starts as a fork of that sequence's
// cache, on the same owner. The ledger counts the shared bytes once. With recurrent states that sequence
// must be a held context: the states of others have moved on.
type contexts struct{ s *State }

// contextShare is the memory that the caches of one context share on a socket.
type contextShare struct {
	bytes int64
	users int
}

func (c *contextShare) size() int64 {
	if c == nil {
		return 0
	}
	return c.bytes
}

// matches reports whether a request can begin as a fork of v, once v's prompt is in its cache.
func (x *contexts) matches(r, v *request, read int) bool {
	return x.forks(r, read) && x.offers(v, read) && v.Salt == r.Salt && r.sameCache(v) && r.canOwn(v.owner) &&
		slices.Equal(v.Prompt[:read], r.Prompt[:read])
}

// forks reports whether a request may begin as a fork of a sequence that has read this number of tokens. It has a row in
// the same step, so a context that was evicted may not.
func (x *contexts) forks(r *request, read int) bool {
	hasRow := read < len(r.Prompt)+len(r.out) && !r.onlyHoldsCache()
	return hasRow && r.Policy.Forks() && !r.NoCache && r.Prefill == 0 && r.limit > 0 && x.s.cfg.Geometry.Windows == nil
}

// offers reports whether requests may be forked from v after this number of tokens. A cache cannot be
// forked while some of its rows are in a file or move to one.
func (x *contexts) offers(v *request, read int) bool {
	return v.read == read && !v.ended && !v.NoCache && v.resides.file.blocks == 0 && (v.Hold || x.s.cfg.Geometry.Recurrent.Layers == 0)
}

// source returns a sequence that a request can begin as a fork of, or nil.
func (x *contexts) source(r *request, read int) *request {
	for _, v := range x.s.running {
		if v.phase == decoding && v.cached >= read && x.matches(r, v, read) {
			return v
		}
	}
	return nil
}

// bytes returns the memory that a request needs if it begins as a fork.
func (x *contexts) bytes(r *request) int64 {
	read, tokens := r.demand()
	return kvcache.ResidentBytes(x.s.cfg.Geometry, read, tokens, r.Policy) - kvcache.ForkBytes(x.s.cfg.Geometry, read, r.Policy)
}

// admit admits a request as a fork of v, if there is room on its owner.
func (x *contexts) admit(p *plan.Plan, r, v *request) bool {
	read, need := r.toRead(), make([]int64, len(x.s.ledger.sockets))
	if need[v.owner] = x.bytes(r); !x.s.residency.makeFree(v.owner, need[v.owner]) {
		return false
	}
	if v.shares == nil {
		shared := kvcache.ForkBytes(x.s.cfg.Geometry, read, r.Policy)
		v.shares = &contextShare{bytes: shared, users: 1}
		v.booked[v.owner] -= shared
	}
	v.shares.users++
	r.shares = v.shares
	x.s.ledger.admit(r, v.owner, need)
	open := x.s.start(r, decoding, read, read)
	open.Resume, open.Fork = r.tokens(0, read), v.seq
	p.Open = append(p.Open, open)
	return true
}

// lastRank is a rank after those of all other requests.
const lastRank = math.MaxInt64 / 2

// hold moves a request that keeps its cache for others to the end of the order, so that it is the first
// to be preempted.
func (x *contexts) hold(r *request) {
	x.s.running.remove(r)
	r.rank = lastRank + int64(r.number)
	x.s.running.insert(r)
}
