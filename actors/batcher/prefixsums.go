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
	if !r.prefix.saves || r.phase != prefill {
		return 0
	}
	return r.Policy.SumsAt(r.read, r.cached)
}

// cut ends a chunk where the attention sums of its prompt can be kept.
func (c *prefixCache) cut(r *request, end int) int {
	if at := r.sumsAt(); at > 0 {
		return min(end, at)
	}
	return end
}

// awaitsSums is where the sums of v will be kept next, if the request may wait for that.
func (r *request) awaitsSums(v *request) int {
	if v.ended || len(v.prefix.blocks) < v.cached/tensor.BlockSlots {
		return 0
	}
	return v.sumsAt()
}

// saveSums keeps the sums of a chunk that ends where it should, if all sockets have room.
func (c *prefixCache) saveSums(run *plan.Run, r *request) {
	end := run.Start + len(run.Tokens)
	if !r.prefix.saves || r.sumsAt() != end || len(r.prefix.blocks)*tensor.BlockSlots != end {
		return
	}
	b := r.prefix.blocks[len(r.prefix.blocks)-1]
	if b.sums || !b.cached {
		return
	}
	b.sums = true
	for i := range c.s.ledger.sockets {
		if bytes := c.s.ledger.sumsBytes(b, i); !c.s.makeFree(i, bytes) {
			b.sums = false
			return
		}
	}
	c.s.ledger.moveSums(b, 1)
	run.Sums = true
}

// savedSums: the step that keeps them is done. Those that a conversation had before are of less use now, unless
// they are where texts are likely to part.
func (c *prefixCache) savedSums(r *request) {
	b := r.prefix.blocks[len(r.prefix.blocks)-1]
	b.summed = true
	if old := r.prefix.sums; old != nil && !old.behind && old.tokens&(old.tokens-1) != 0 {
		old.behind = true
		c.behind = append(c.behind, old)
	}
	r.prefix.sums = b
}

// evictSums drops sums that are behind others and free bytes on a socket; false: there are none.
func (c *prefixCache) evictSums(rank int) bool {
	c.behind = slices.DeleteFunc(c.behind, func(b *textBlock) bool { return !b.summed })
	for i, b := range c.behind {
		if b.step != c.s.steps+1 && c.s.ledger.sumsBytes(b, rank) > 0 {
			c.behind = slices.Delete(c.behind, i, i+1)
			c.dropSums(b)
			return true
		}
	}
	return false
}

// dropSums drops those beside a block that stays.
func (c *prefixCache) dropSums(b *textBlock) {
	c.s.ledger.moveSums(b, -1)
	b.sums, b.summed = false, false
	c.unsummed = append(c.unsummed, b.id)
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
