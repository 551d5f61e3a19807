package batcher

import (
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Attention sums. A policy that sums attention over all queries of a prompt needs these sums in
// addition to a cached text's rows. The sums at the end of some blocks are stored with those
// blocks, in memory of the cache, and a later prompt continues from them (kvcache.Policy.SumsAt).
// Files have no sums.

// sumsAt returns where the next chunk of a prompt must end so that its sums can be kept; 0: anywhere.
func (r *request) sumsAt() int {
	if !r.prefix.saves || r.phase != prefill {
		return 0
	}
	return r.Policy.SumsAt(r.read, r.cached)
}

// cut shortens a chunk so that it ends where the attention sums of its prompt can be stored.
func (c *prefixCache) cut(r *request, end int) int {
	if at := r.sumsAt(); at > 0 {
		return min(end, at)
	}
	return end
}

// awaitsSums returns where the sums of v will be kept next, if the request can wait for them.
func (r *request) awaitsSums(v *request) int {
	if v.ended || len(v.prefix.blocks) < v.cached/tensor.BlockSlots {
		return 0
	}
	return v.sumsAt()
}

// saveSums stores the sums at the end of a chunk, if the chunk ends at the right place and all
// sockets have room.
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

// savedSums marks sums whose step has completed. Earlier sums of the same conversation are then
// outdated, except at powers of two, where texts are likely to diverge.
func (c *prefixCache) savedSums(r *request) {
	b := r.prefix.blocks[len(r.prefix.blocks)-1]
	b.summed = true
	if old := r.prefix.sums; old != nil && !old.outdated && old.tokens&(old.tokens-1) != 0 {
		old.outdated = true
		c.outdated = append(c.outdated, old)
	}
	r.prefix.sums = b
}

// evictSums drops outdated sums to free memory on a socket. It returns false if there are none.
func (c *prefixCache) evictSums(rank int) bool {
	c.outdated = slices.DeleteFunc(c.outdated, func(b *textBlock) bool { return !b.summed })
	for i, b := range c.outdated {
		if b.step != c.s.steps+1 && c.s.ledger.sumsBytes(b, rank) > 0 {
			c.outdated = slices.Delete(c.outdated, i, i+1)
			c.dropSums(b)
			return true
		}
	}
	return false
}

// dropSums drops the sums of a block and keeps the block.
func (c *prefixCache) dropSums(b *textBlock) {
	c.s.ledger.moveSums(b, -1)
	b.sums, b.summed = false, false
	c.unsummed = append(c.unsummed, b.id)
}

// sumsBytes returns the memory of a block's sums on a socket.
func (l *ledger) sumsBytes(b *textBlock, rank int) int64 {
	if !b.sums {
		return 0
	}
	return kvcache.SumsBytes(l.g, l.sockets[rank].heads(), b.tokens)
}

// moveSums books the memory of a block's sums, or frees it with sign -1.
func (l *ledger) moveSums(b *textBlock, sign int64) {
	for i := range l.sockets {
		bytes := sign * l.sumsBytes(b, i)
		l.sockets[i].shared += bytes
		l.sockets[i].evictable += bytes
	}
}
