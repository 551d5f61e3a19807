package prefix

import (
	"container/heap"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// use counts a use of a block. Its value is the number of uses plus the value of the last evicted
// block, so a block that is no longer used is evicted eventually. This is GreedyDual-Size with
// frequency; all blocks have the same size and about the same cost to read.
func (t *Tree) use(b *Block) {
	t.touches++
	b.uses++
	b.value, b.touched = t.clock+b.uses, t.touches
	if b.at != none {
		heap.Fix(&t.leaves, b.at)
	}
}

// settle adds a block to the leaves or removes it, as its state requires.
func (t *Tree) settle(b *Block) {
	leaf := b.Cached && b.Ready && b.after == 0
	switch {
	case leaf && b.at == none:
		heap.Push(&t.leaves, b)
	case !leaf && b.at != none:
		heap.Remove(&t.leaves, b.at)
	}
}

// evict frees memory on a socket: it drops the least valuable block with memory there, or only its
// extras. With whole it drops no extras alone. It returns false if no block has any memory there.
func (t *Tree) evict(rank int, whole bool) bool {
	if !whole && t.evictExtras(rank) {
		return true
	}
	var passed []*Block
	var victim *Block
	for victim == nil && len(t.leaves) > 0 {
		b := heap.Pop(&t.leaves).(*Block)
		if b.step == t.step || t.gain(b, rank) == 0 {
			passed = append(passed, b)
			continue
		}
		victim = b
	}
	for _, b := range passed {
		heap.Push(&t.leaves, b)
	}
	switch {
	case victim == nil:
		return false
	case victim.Extras != 0 && !whole: // the rows may still be useful to other policies, or after an earlier snapshot
		heap.Push(&t.leaves, victim)
		t.dropExtras(victim)
		return true
	}
	t.clock = max(t.clock, victim.value)
	t.drop(victim)
	return true
}

// MakeFree evicts blocks until this number of bytes is free on a socket.
func (t *Tree) MakeFree(rank int, bytes int64) bool { return t.makeFree(rank, bytes, false) }

// MakeFreeNow is MakeFree for bytes that are needed before the next step. Sockets drop extras alone only with a step.
func (t *Tree) MakeFreeNow(rank int, bytes int64) bool { return t.makeFree(rank, bytes, true) }

func (t *Tree) makeFree(rank int, bytes int64, whole bool) bool {
	for t.ledger.Free(rank) < bytes {
		if !t.evict(rank, whole) {
			return false
		}
	}
	return true
}

// drop removes a leaf from the cache. Sequences that hold its rows keep them.
func (t *Tree) drop(b *Block) {
	t.free(b)
	delete(t.blocks, b.key)
	b.Cached = false
	t.settle(b)
	t.Evicted.Add(b.ID)
	t.Totals.Evicted += tensor.BlockSlots
	if p := b.Parent; p != nil {
		p.after--
		t.settle(p)
	}
	b.Parent = nil
}

// Empty drops all blocks that can be evicted.
func (t *Tree) Empty() {
	t.outdated = nil
	for len(t.leaves) > 0 {
		t.drop(heap.Pop(&t.leaves).(*Block))
	}
}

// leaves are the blocks that can be evicted: the least valuable first, then the least recently used.
type leaves []*Block

func (l leaves) Len() int { return len(l) }
func (l leaves) Less(i, j int) bool {
	if l[i].value != l[j].value {
		return l[i].value < l[j].value
	}
	return l[i].touched < l[j].touched
}
func (l leaves) Swap(i, j int) { l[i], l[j] = l[j], l[i]; l[i].at, l[j].at = i, j }
func (l *leaves) Push(x any)   { b := x.(*Block); b.at = len(*l); *l = append(*l, b) }
func (l *leaves) Pop() any {
	last := len(*l) - 1
	b := (*l)[last]
	(*l)[last], *l = nil, (*l)[:last]
	b.at = none
	return b
}
