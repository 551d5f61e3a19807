package kvcache

import (
	"sync"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// A table has planes: lists of equal-sized blocks from the arena. A block of rows holds keys,
// values and their scales as the kernels read them (see docs/decisions/cache-layout.md). Data that
// only some policies need has blocks of its own.
const (
	rowsPlane  = iota // keys, values and scales of tensor.BlockSlots slots
	halfPlane         // rotate_half of the keys, see Policy.AtCachePositions
	indexPlane        // of a Selector
	planes
)

// plane is one plane of a table.
type plane struct {
	size   int // bytes of a block; 0: the table has no such plane
	slots  int // slots that a block covers
	blocks [][]byte
}

// room returns the number of blocks for a number of slots.
func (p *plane) room(slots int) int {
	if p.size == 0 {
		return 0
	}
	return (slots + p.slots - 1) / p.slots
}

// extendIndex updates the index of a table's slots [from, to) from their rows. Slots of a ring have no index.
func (s *Store) extendIndex(t *table, from, to int) {
	if t.rule.Ring > 0 {
		if to = t.rule.selectable(s.prompt, to); from >= to {
			return
		}
	}
	if t.rule.Selector != nil {
		scratch := scratches.Get().(*tensor.AttnScratch)
		defer scratches.Put(scratch)
		t.rule.Selector.Update(t.layout, t.planes[indexPlane].blocks, t.rows(), from, to, scratch)
		t.indexed = to
	}
}

// reindex is extendIndex for slots whose rows may have changed since they were indexed.
func (s *Store) reindex(t *table, from, to int) {
	if t.rule.Selector != nil {
		if from < t.indexed {
			from -= from % t.rule.Selector.Page()
		}
		s.extendIndex(t, from, to)
	}
}

var scratches = sync.Pool{New: func() any { return new(tensor.AttnScratch) }}

// planesOf returns the planes of a table under rule p, all empty. window is that of its layer.
func (g Geometry) planesOf(p *Policy, window int) (all [planes]plane) {
	all[rowsPlane] = plane{size: g.rows(window).BlockBytes(), slots: tensor.BlockSlots}
	if p.half {
		all[halfPlane] = plane{size: g.Layout.HalfBytes(), slots: tensor.BlockSlots}
	}
	if p.Selector != nil {
		all[indexPlane].size, all[indexPlane].slots = p.Selector.Index(g.Layout)
	}
	return all
}
