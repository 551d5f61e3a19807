package batcher

import (
	"math"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/plan"
)

// Fixed contexts: a sequence that begins like one whose cache is there, under a policy that lays a
// prompt out once, begins as a fork of that cache on its owner. What both hold is booked once.

// contextShare is what the caches of a context hold together, on one socket.
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

// forksOf says whether a request may begin as a fork of v, once v's prompt is in its cache.
func (s *State) forksOf(r, v *request, read int) bool {
	return r.Policy.Forks() && !r.NoCache && r.limit > 0 && s.cfg.Geometry.Windows == nil && read < len(r.Prompt)+len(r.out) && // else no row would be left
		v.read == read && !v.ended && v.Policy.Spec() == r.Policy.Spec() && v.Salt == r.Salt && !v.NoCache && r.canOwn(v.owner) &&
		slices.Equal(v.Prompt[:read], r.Prompt[:read])
}

// source is a sequence that a request may begin as a fork of.
func (s *State) source(r *request, read int) *request {
	for _, v := range s.running {
		if v.phase == decoding && v.cached >= read && s.forksOf(r, v, read) {
			return v
		}
	}
	return nil
}

// forkNeeds are the bytes of a request that begins as a fork.
func (s *State) forkNeeds(r *request) int64 {
	read, tokens := r.asks()
	return kvcache.ResidentBytes(s.cfg.Geometry, read, tokens, r.Policy) - kvcache.ForkBytes(s.cfg.Geometry, read, r.Policy)
}

// fork admits a request as a fork of v, if there is room on its owner.
func (s *State) fork(p *plan.Plan, r, v *request) bool {
	read, need := r.toRead(), make([]int64, len(s.ledger.sockets))
	if need[v.owner] = s.forkNeeds(r); !s.makeFree(v.owner, need[v.owner]) {
		return false
	}
	if v.shares == nil {
		shared := kvcache.ForkBytes(s.cfg.Geometry, read, r.Policy)
		v.shares = &contextShare{bytes: shared, users: 1}
		v.hold[v.owner] -= shared
	}
	v.shares.users++
	s.waiting.remove(r)
	s.ledger.admit(r, v.owner, need)
	s.sequences++
	r.phase, r.seq, r.read, r.cached, r.staged, r.replica, r.shares = decoding, s.sequences, read, read, 0, none, v.shares
	s.begun(r, read)
	s.running.insert(r)
	open := s.opens(r)
	open.Resume, open.Fork, open.Replica = r.tokens(0, read), v.seq, none
	p.Open = append(p.Open, open)
	return true
}

// behindAll is a rank above that of every request.
const behindAll = math.MaxInt64 / 2

// last puts a request that holds its cache for others behind all that run: it is the first to
// give memory up.
func (s *State) last(r *request) {
	s.running.remove(r)
	r.rank = behindAll + int64(r.number)
	s.running.insert(r)
}
