// Package transfer cuts a whole cache into the pieces in which it moves to a store on another socket.
// Both sockets derive the same pieces from their own stores, so memory is not allocated by numbers from a peer.
package transfer

import (
	"fmt"
	"iter"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/rowblock"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// perSlot are the planes that have a row for each slot.
const perSlot = rowblock.Positions | rowblock.Numbers | rowblock.Rows

// Pieces returns the blocks that make up a cache after the given number of tokens, in order. Each is
// part of one head of one layer. Its body has at most size bytes, unless a single row is longer: that
// of an index, or a recurrent state.
func Pieces(s *kvcache.Store, tokens, size int) iter.Seq[rowblock.Block] {
	return func(yield func(rowblock.Block) bool) {
		g := s.Geometry()
		for layer := range g.Layers + g.Recurrent.Layers {
			whole := s.LayerBlock(layer, tokens)
			for head := whole.Heads.Lo; head < whole.Heads.Hi; head++ {
				if !ofHead(s, whole, head, size, yield) {
					return
				}
			}
		}
	}
}

// ofHead yields the pieces of one head of a layer.
func ofHead(s *kvcache.Store, whole rowblock.Block, head, size int, yield func(rowblock.Block) bool) bool {
	whole.Heads = tensor.Span{Lo: head, Hi: head + 1}
	rows, rest := whole, whole
	rows.Planes, rest.Planes = whole.Planes&perSlot, whole.Planes&^perSlot
	if rows.Planes != 0 && rows.Slots.Len() > 0 {
		one := rows
		one.Slots.Hi = one.Slots.Lo + 1
		n := max(1, size/max(1, Body(s, one)))
		for lo := whole.Slots.Lo; lo < whole.Slots.Hi; lo += n {
			rows.Slots = tensor.Span{Lo: lo, Hi: min(lo+n, whole.Slots.Hi)}
			if !yield(rows) {
				return false
			}
		}
	}
	return rest.Planes == 0 || Body(s, rest) == 0 || yield(rest)
}

// Body returns the number of bytes of a block's body.
func Body(s rowblock.Shaper, b rowblock.Block) int { return b.Bytes(s) - rowblock.HeaderBytes }

// Check verifies that a block from another socket is a part of a cache after the given number of
// tokens, of one head of one layer. Call it before Body and ReadRows.
func Check(s *kvcache.Store, tokens int, b rowblock.Block) error {
	g := s.Geometry()
	if b.Layers.Len() != 1 || b.Layers.Hi > g.Layers+g.Recurrent.Layers {
		return fmt.Errorf("%w: %v of a cache with %d layers: want one layer", rowblock.Err, b, g.Layers+g.Recurrent.Layers)
	}
	whole := s.LayerBlock(b.Layers.Lo, tokens)
	rows := b.Planes&perSlot != 0
	switch {
	case b.Heads.Len() != 1 || b.Heads.Lo < whole.Heads.Lo || b.Heads.Hi > whole.Heads.Hi:
		return fmt.Errorf("%w: %v: want one of the heads [%d,%d)", rowblock.Err, b, whole.Heads.Lo, whole.Heads.Hi)
	case b.Planes&^whole.Planes != 0:
		return fmt.Errorf("%w: %v: the cache moves planes %#x", rowblock.Err, b, uint32(whole.Planes))
	case b.Slots.Lo < whole.Slots.Lo || b.Slots.Hi > whole.Slots.Hi || rows && b.Slots.Len() == 0 || !rows && b.Slots != whole.Slots:
		return fmt.Errorf("%w: %v: the cache has slots [%d,%d)", rowblock.Err, b, whole.Slots.Lo, whole.Slots.Hi)
	}
	return nil
}
