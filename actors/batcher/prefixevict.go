package batcher

import (
	"container/heap"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// use counts a use of a block. Its value is the number of uses plus the value of the last evicted
// block, so a block that is no longer used is evicted eventually. This is GreedyDual-Size with
// frequency; all blocks have the same size and about the same cost to read.
func (c *prefixCache) use(b *textBlock) {
	c.touches++
	b.uses++
	b.value, b.touched = c.clock+b.uses, c.touches
	if b.at != none {
		heap.Fix(&c.leaves, b.at)
	}
}

// settle adds a block to the leaves or removes it, as its state requires.
func (c *prefixCache) settle(b *textBlock) {
	leaf := b.cached && b.ready && b.after == 0
	switch {
	case leaf && b.at == none:
		heap.Push(&c.leaves, b)
	case !leaf && b.at != none:
		heap.Remove(&c.leaves, b.at)
	}
}

// evict frees memory on a socket: it drops the least valuable block with memory there, or only its
// extras. It returns false if no block has any.
func (c *prefixCache) evict(rank int) bool {
	if c.evictExtras(rank) {
		return true
	}
	var passed []*textBlock
	var gone *textBlock
	for gone == nil && len(c.leaves) > 0 {
		b := heap.Pop(&c.leaves).(*textBlock)
		if b.step == c.s.steps+1 || c.s.ledger.gain(b, rank) == 0 {
			passed = append(passed, b)
			continue
		}
		gone = b
	}
	for _, b := range passed {
		heap.Push(&c.leaves, b)
	}
	switch {
	case gone == nil:
		return false
	case gone.extras != 0: // the rows may still be useful to other policies, or after an earlier snapshot
		heap.Push(&c.leaves, gone)
		c.dropExtras(gone)
		return true
	}
	c.clock = max(c.clock, gone.value)
	c.drop(gone)
	return true
}

// makeFree evicts blocks until this number of bytes is free on a socket.
func (c *prefixCache) makeFree(rank int, bytes int64) bool {
	for c.s.ledger.sockets[rank].free() < bytes {
		if !c.evict(rank) {
			return false
		}
	}
	return true
}

// drop removes a leaf from the cache. Sequences that hold its rows keep them.
func (c *prefixCache) drop(b *textBlock) {
	c.s.ledger.freeBlock(b)
	delete(c.blocks, b.key)
	b.cached = false
	c.settle(b)
	c.evicted.Add(b.id)
	c.totals.Evicted += tensor.BlockSlots
	if p := b.parent; p != nil {
		p.after--
		c.settle(p)
	}
	b.parent = nil
}

// reset empties the cache.
func (c *prefixCache) reset() {
	c.empty, c.outdated = false, nil
	for c.cancelFetch() {
	}
	for len(c.leaves) > 0 {
		c.drop(heap.Pop(&c.leaves).(*textBlock))
	}
}

// leaves are the blocks that can be evicted: the least valuable first, then the least recently used.
type leaves []*textBlock

func (l leaves) Len() int { return len(l) }
func (l leaves) Less(i, j int) bool {
	if l[i].value != l[j].value {
		return l[i].value < l[j].value
	}
	return l[i].touched < l[j].touched
}
func (l leaves) Swap(i, j int) { l[i], l[j] = l[j], l[i]; l[i].at, l[j].at = i, j }
func (l *leaves) Push(x any)   { b := x.(*textBlock); b.at = len(*l); *l = append(*l, b) }
func (l *leaves) Pop() any {
	last := len(*l) - 1
	b := (*l)[last]
	(*l)[last], *l = nil, (*l)[:last]
	b.at = none
	return b
}
