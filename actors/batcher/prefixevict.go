package batcher

import (
	"container/heap"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// use notes that a block was used: its value is how often, above that of the last block
// which was evicted, so that what was popular once goes in the end (GreedyDual-Size with
// frequency; all blocks have one size and take about as long to read).
func (c *prefixCache) use(b *textBlock) {
	c.touches++
	b.uses++
	b.value, b.touched = c.clock+b.uses, c.touches
	if b.at != none {
		heap.Fix(&c.leaves, b.at)
	}
}

// settle puts a block among the leaves, or takes it from there.
func (c *prefixCache) settle(b *textBlock) {
	leaf := b.cached && b.ready && b.after == 0
	switch {
	case leaf && b.at == none:
		heap.Push(&c.leaves, b)
	case !leaf && b.at != none:
		heap.Remove(&c.leaves, b.at)
	}
}

// evict drops the block of least value whose end frees bytes on a socket, or the sums beside it. False: none does.
func (c *prefixCache) evict(rank int) bool {
	if c.evictSums(rank) {
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
	case gone.sums: // they would go with it; the rows may be of use to others still
		heap.Push(&c.leaves, gone)
		c.dropSums(gone)
		return true
	}
	c.clock = max(c.clock, gone.value)
	c.drop(gone)
	return true
}

// drops makes a leaf unfindable. Sequences that hold its rows keep them.
func (c *prefixCache) drop(b *textBlock) {
	c.s.ledger.uncache(b)
	delete(c.blocks, b.key)
	b.cached = false
	c.settle(b)
	c.evicted.add(b.id)
	c.totals.Evicted += tensor.BlockSlots
	if p := b.parent; p != nil {
		p.after--
		c.settle(p)
	}
	b.parent = nil
}

// reset empties the cache.
func (c *prefixCache) reset() {
	c.empty, c.behind = false, nil
	for c.giveUpFetch() {
	}
	for len(c.leaves) > 0 {
		c.drop(heap.Pop(&c.leaves).(*textBlock))
	}
}

// leaves are blocks that may be evicted, the least valuable first, the longest unused of
// equals.
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
