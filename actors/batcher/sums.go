package batcher

import (
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// A policy that sums attention over all queries of a prompt needs more of a cached text than its
// rows. What it had summed at the end of a block lies beside that, in memory that is the cache's
// alone, and a prompt goes on from there; see kvcache.Policy.SumsAt. Files have none.

// sumsAt is where the next chunk of a prompt has to end so that its sums can be kept; 0: anywhere.
func (r *request) sumsAt() int {
	if !r.saves || r.phase != prefill {
		return 0
	}
	return r.Policy.SumsAt(r.read, r.cached)
}

// awaitsSums is where the sums of v will be kept next, if the request may wait for that.
func (r *request) awaitsSums(v *request) int {
	if v.ended || len(v.pins) < v.cached/tensor.BlockSlots || r.awaited != 0 && r.awaited != v.seq {
		return 0
	}
	return v.sumsAt()
}

// saveSums keeps the sums of a chunk that ends where it should, if all sockets have room.
func (s *State) saveSums(c *plan.Run, r *request) {
	end := c.Start + len(c.Tokens)
	if !r.saves || r.sumsAt() != end || len(r.pins)*tensor.BlockSlots != end {
		return
	}
	b := r.pins[len(r.pins)-1]
	if b.sums || !b.cached {
		return
	}
	b.sums = true
	for i := range s.ledger.sockets {
		if bytes := s.ledger.sumsBytes(b, i); !s.makeFree(i, bytes) {
			b.sums = false
			return
		}
	}
	s.ledger.moveSums(b, 1)
	c.Sums = true
}

// savedSums: the step that keeps them is done. Those that a conversation had before are of less use now, unless
// they are where texts are likely to part.
func (s *State) savedSums(r *request) {
	b := r.pins[len(r.pins)-1]
	b.summed = true
	if old := r.sums; old != nil && !old.behind && old.tokens&(old.tokens-1) != 0 {
		old.behind = true
		s.prefix.behind = append(s.prefix.behind, old)
	}
	r.sums = b
}

// evictSums drops sums that are behind others and free bytes on a socket; false: there are none.
func (s *State) evictSums(rank int) bool {
	s.prefix.behind = slices.DeleteFunc(s.prefix.behind, func(b *textBlock) bool { return !b.summed })
	for i, b := range s.prefix.behind {
		if b.step != s.steps+1 && s.ledger.sumsBytes(b, rank) > 0 {
			s.prefix.behind = slices.Delete(s.prefix.behind, i, i+1)
			s.dropSums(b)
			return true
		}
	}
	return false
}

// dropSums drops those beside a block that stays.
func (s *State) dropSums(b *textBlock) {
	s.ledger.moveSums(b, -1)
	b.sums, b.summed = false, false
	s.prefix.unsummed = append(s.prefix.unsummed, b.id)
}

// sumsBytes are those of the sums beside a block.
func (l *ledger) sumsBytes(b *textBlock, rank int) int64 {
	if !b.sums {
		return 0
	}
	return kvcache.SumsBytes(l.g, l.sockets[rank].heads(), b.tokens)
}

// moveSums books the sums beside a block, or gives them back with -1.
func (l *ledger) moveSums(b *textBlock, sign int64) {
	for i := range l.sockets {
		bytes := sign * l.sumsBytes(b, i)
		l.sockets[i].shared += bytes
		l.sockets[i].evictable += bytes
	}
}
