package batcher

import (
	"slices"

	"github.com/shoal-llm/shoal/actors/batcher/snapshots"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Extras of blocks. Some prompts need more than a cached text's rows to start after it: a policy that
// sums attention over all queries of a prompt needs these sums, and a model with recurrent layers a
// snapshot of their states. Both are stored with some blocks, in memory of the cache. A later prompt
// starts after the last block that has what it needs. Files have snapshots but no sums.

// extras is a set of what a block has besides rows.
type extras uint8

const (
	attentionSums extras = 1 << iota
	snapshot
)

// needs returns the extras that a prompt needs of the block that it starts after.
func (c *prefixCache) needs(r *request) (x extras) {
	if r.Policy.Needs.PromptAttention {
		x |= attentionSums
	}
	if c.recurrent() {
		x |= snapshot
	}
	return x
}

// recurrent reports whether a prompt can start after a block with a snapshot only.
func (c *prefixCache) recurrent() bool { return c.s.cfg.Geometry.Recurrent.Layers > 0 }

// extrasAt returns where the next chunk of a prompt must end so that its extras can be kept; 0:
// anywhere. A prompt that needs both kinds keeps them together, where sums are worth keeping.
func (c *prefixCache) extrasAt(r *request) int {
	switch {
	case !r.prefix.saves || r.phase != prefill:
		return 0
	case r.Policy.Needs.PromptAttention:
		return r.Policy.SumsAt(r.read, r.cached)
	}
	return snapshots.At(&c.s.cfg.Geometry, r.Policy, r.read, r.cached, r.prefix.branch)
}

// regular reports whether texts are likely to diverge after a block, so that its extras stay when later
// ones of the same conversation come.
func (c *prefixCache) regular(b *textBlock) bool {
	if b.extras&attentionSums != 0 || !c.recurrent() {
		return b.tokens&(b.tokens-1) == 0
	}
	return b.after > 1 || b.tokens%snapshots.Stride(&c.s.cfg.Geometry) == 0
}

// cut shortens a chunk so that it ends where the extras of its prompt can be stored.
func (c *prefixCache) cut(r *request, end int) int {
	if at := c.extrasAt(r); at > 0 {
		return min(end, at)
	}
	return end
}

// awaitsExtras returns where v will keep extras next, if a request that needs these can wait for them.
func (c *prefixCache) awaitsExtras(v *request, need extras) int {
	if v.ended || len(v.prefix.blocks) < v.cached/tensor.BlockSlots || c.needs(v)&need != need {
		return 0
	}
	return c.extrasAt(v)
}

// saveExtras stores the extras at the end of a chunk, if the chunk ends at the right place and all
// sockets have room.
func (c *prefixCache) saveExtras(run *plan.Run, r *request) {
	end := run.Start + len(run.Tokens)
	if !r.prefix.saves || c.extrasAt(r) != end || len(r.prefix.blocks)*tensor.BlockSlots != end {
		return
	}
	b := r.prefix.blocks[len(r.prefix.blocks)-1]
	x := c.needs(r) &^ b.extras
	if x == 0 || !b.cached || !c.bookExtras(b, x) {
		return
	}
	run.Sums, run.Snapshot = x&attentionSums != 0, x&snapshot != 0
}

// extrasOf returns the extras that a run saves.
func extrasOf(run *plan.Run) (x extras) {
	if run.Sums {
		x |= attentionSums
	}
	if run.Snapshot {
		x |= snapshot
	}
	return x
}

// bookExtras books memory for extras of a block on every socket. It returns false if it does not fit.
func (c *prefixCache) bookExtras(b *textBlock, x extras) bool {
	for i := range c.s.ledger.sockets {
		if bytes := c.s.ledger.extrasBytes(b, x, i); !c.makeFree(i, bytes) {
			return false
		}
	}
	c.s.ledger.moveExtras(b, x, 1)
	b.extras |= x
	return true
}

// savedExtras marks extras whose step has completed. Earlier ones of the same conversation are then
// outdated, except at regular places.
func (c *prefixCache) savedExtras(run *plan.Run, r *request) {
	b := r.prefix.blocks[len(r.prefix.blocks)-1]
	b.written |= extrasOf(run)
	if b.written&c.needs(r) != c.needs(r) {
		return // a snapshot is on its way from files
	}
	for _, old := range r.prefix.blocks[:len(r.prefix.blocks)-1] {
		if old.written != 0 && !old.outdated && !c.regular(old) {
			old.outdated = true
			c.outdated = append(c.outdated, old)
		}
	}
}

// evictExtras drops outdated extras to free memory on a socket. It returns false if there are none.
func (c *prefixCache) evictExtras(rank int) bool {
	c.outdated = slices.DeleteFunc(c.outdated, func(b *textBlock) bool { return !b.outdated || b.written == 0 })
	for i, b := range c.outdated {
		if b.step != c.s.steps+1 && c.s.ledger.extrasBytes(b, b.extras, rank) > 0 {
			c.outdated = slices.Delete(c.outdated, i, i+1)
			c.dropExtras(b)
			return true
		}
	}
	return false
}

// dropExtras drops the extras of a block and keeps the block.
func (c *prefixCache) dropExtras(b *textBlock) {
	c.s.ledger.moveExtras(b, b.extras, -1)
	b.extras, b.written, b.outdated = 0, 0, false
	c.dropped = append(c.dropped, b.id)
}

// extrasBytes returns the memory of extras of a block on a socket.
func (l *ledger) extrasBytes(b *textBlock, x extras, rank int) (bytes int64) {
	heads := l.sockets[rank].heads()
	if x&attentionSums != 0 {
		bytes += kvcache.SumsBytes(l.g, heads, b.tokens)
	}
	if x&snapshot != 0 {
		bytes += kvcache.StateBytes(l.g, heads)
	}
	return bytes
}

// moveExtras books the memory of extras of a block, or frees it with sign -1.
func (l *ledger) moveExtras(b *textBlock, x extras, sign int64) {
	for i := range l.sockets {
		bytes := sign * l.extrasBytes(b, x, i)
		l.sockets[i].shared += bytes
		l.sockets[i].evictable += bytes
	}
}
