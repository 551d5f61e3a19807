package batcher

import (
	"math"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/plan"
)

// sessions is the module for caches that wait for the next turn of their session. When a turn ends, its
// request stays among the running ones without rows: it is idle. Idle requests are preempted before all
// others, the oldest first, and are then gone. Those with rows in files have little memory and come last.
// The next turn has the tokens of the last one at its beginning. It takes over the idle cache, and reads
// the others as decode rows. If there is no idle cache, the same rows are computed again. So the bits of
// a session depend on its turns alone.
type sessions struct{ s *State }

// EndSession frees the cache of a session that waits for its next turn.
type EndSession struct{ Session string }

// mostIdle divides the token budget: at most this share of the sequences of a step may be idle.
const mostIdle = 2

// keep makes a request idle whose turn has ended. It returns false if its cache is of no use to the next
// turn: it was cancelled, or prefill rebuilds it from the prefix cache.
func (x *sessions) keep(r *request) bool {
	if r.Session == "" || r.idle || !r.complete || r.phase != decoding || r.Policy.RebuildsByPrefill() {
		return false
	}
	r.idle, r.ended, r.Deadline, r.until, r.idleSince = true, false, 0, x.s.now+r.SessionMillis, x.s.now
	r.rank = math.MaxInt64 - int64(r.number) // after held contexts, the oldest last
	return true
}

// expire frees the caches whose session has waited too long or has a newer one, and the oldest ones while
// there are too many.
func (x *sessions) expire() {
	count, newest := 0, map[string]*request{}
	for _, r := range x.s.running {
		if r.idle {
			count++
			if newest[r.Session] == nil { // the newest is the first in order
				newest[r.Session] = r
			}
		}
	}
	for _, r := range slices.Backward(slices.Clone(x.s.running)) {
		if r.idle && (x.s.now >= r.until || newest[r.Session] != r || count > x.s.cfg.TokenBudget/mostIdle) {
			x.s.preempt(r)
			count--
		}
	}
}

// end frees the idle caches of a session, or all if it is "".
func (x *sessions) end(session string) {
	for _, list := range []queue{x.s.running, x.s.waiting} {
		for _, r := range list {
			if r.idle && (session == "" || r.Session == session) {
				r.until = x.s.now // expire frees it between steps
			}
		}
	}
}

// removeIdle drops the idle requests whose caches did not outlive their epoch.
func (x *sessions) removeIdle() {
	for _, r := range append(queue(nil), x.s.waiting...) {
		if r.idle {
			x.s.waiting.remove(r)
		}
	}
}

// source returns the idle cache with which a request begins, or nil.
func (x *sessions) source(r *request) *request {
	if r == nil || r.Session == "" || r.Policy.RebuildsByPrefill() || r.NoCache {
		return nil
	}
	for _, v := range x.s.running {
		moving := v.resides.file.blocks > 0 && !v.resides.file.done
		if v.idle && v.Session == r.Session && v.read == r.toRead() && r.canOwn(v.owner) && r.sameCache(v) && !moving && v.begins(r) {
			return v
		}
	}
	return nil
}

// begins reports whether the tokens in the cache of r are the first ones of the next turn, which has more.
func (r *request) begins(next *request) bool {
	if r.cached >= len(next.Prompt)+len(next.out) {
		return false
	}
	for pos := range r.cached {
		if r.token(pos) != next.token(pos) {
			return false
		}
	}
	return true
}

// admit continues with the cache of the idle request v. It returns false if there is no room for the next
// row. It evicts no sequence whose cache another one of the plan begins with.
func (x *sessions) admit(p *plan.Plan, r, v *request) bool {
	owner := v.owner
	bytes := kvcache.SpilledBytes(x.s.cfg.Geometry, v.read, v.cached+1, 1, v.resides.file.blocks, v.Policy) - x.s.ledger.owned(v) -
		v.shares.size()
	for last := len(x.s.running) - 1; !x.s.residency.makeFree(owner, bytes); last-- {
		if last < 0 {
			return false
		}
		o := x.s.running[last]
		forked := slices.ContainsFunc(p.Open, func(open plan.Open) bool { return open.Fork == o.seq })
		if o != v && o.owner == owner && (o.idle || o.holdsContext()) && !forked {
			if x.s.saves.awaits(o, r) {
				return false
			}
			x.s.preempt(o)
		}
	}
	if v.resides.replica != none {
		x.s.ledger.removeReplica(v) // its socket drops it when r takes the cache
	}
	x.s.running.remove(v)
	r.owner, r.booked, r.shares, r.resides, r.prefix.Blocks = owner, v.booked, v.shares, v.resides, v.prefix.Blocks
	x.s.ledger.grow(r, bytes)
	if v.prefix.copy.booked {
		x.s.ledger.moveCopy(v, -1)
	}
	open := x.s.start(r, decoding, v.read, v.cached)
	open.Resume, open.Fork, open.Take = r.tokens(0, r.cached), v.seq, true
	p.Open = append(p.Open, open)
	return true
}
