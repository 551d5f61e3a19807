package kvcache

import (
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// AtCachePositions gives the tokens of a policy that evicts positions within the cache
// instead of those in the text: the distance from a query to a slot counts the
// tokens that are still there (StreamingLLM, arXiv 2309.17453, section 3.2), in
// place and re-indexed as EQUIP does (section 4.2, figures 16 to 18).
//
// A row is written once, its key rotated at the token's true position, and never
// moves nor changes. The position that it is read at is
//
//	index(slot) = position(slot) + offset(slot)
//	offset(slot) = number of evicted tokens between the slot's and the newest
//
// and the query's is its true one. Rotations add up and attention sees only
// differences, so these indices, counted back from the newest token, give the
// attention of indices 0..n-1 counted from the oldest. Counted so, the tokens
// of a ring have offset 0 for ever: only those older than an evicted one turn,
// in a stream the sink alone.
//
// Arithmetic: a stored key is widened to float32, rotated by its offset with each
// product rounded (tensor.RopeRotateHalf), and rounded to the cache type before
// it is scored (tensor.KVLayout.RotateKeys). An offset of 0 changes no bit.
//
// half keeps rotate_half of every key beside the keys, as EQUIP does (figures 16, 17): half
// as much memory again as keys and values of equal width take. It changes no bit.
func (p *Policy) AtCachePositions(half bool) *Policy {
	r := *p
	r.cachePositions, r.half = true, half
	r.spec += ",positions=cache"
	if half {
		r.spec += ",half=1"
	}
	return &r
}

// Rope gives cos and sin (KDim/2 each) of the rotation by n positions. It may be
// called concurrently, and n is at most the position of the newest token.
type Rope func(n int) (cos, sin []float32)

// ReadBlocks are the blocks of a head as attention reads them. Under
// AtCachePositions blocks with a key that must turn are copies in scratch,
// valid until its next use; all others, and all under other policies, are Blocks.
func (s *Store) ReadBlocks(layer, head int, rope Rope, scratch *tensor.AttnScratch) [][]byte {
	t := s.table(layer, head)
	if t.offsets == nil {
		return t.rows()
	}
	l, n := s.g.Layout, t.n
	turning := 0
	for b := 0; b*tensor.BlockSlots < n; b++ {
		if slices.ContainsFunc(t.blockOffsets(b), nonzero) {
			turning++
		}
	}
	if turning == 0 {
		return t.rows()
	}
	copies, row := scratch.Blocks(turning, l.BlockBytes()), scratch.Row(2*l.KDim)
	out := make([][]byte, int(blocksOf(n)))
	for b := range out {
		out[b] = t.rows()[b]
		if offsets := t.blockOffsets(b); slices.ContainsFunc(offsets, nonzero) {
			var half []byte
			if halves := t.planes[halfPlane].blocks; halves != nil {
				half = halves[b]
			}
			out[b], copies = copies[0], copies[1:]
			l.RotateKeys(out[b], t.rows()[b], half, offsets, rope, row)
		}
	}
	return out
}

func nonzero(n int32) bool { return n != 0 }

// blockOffsets are those of the slots in use of one block.
func (t *table) blockOffsets(b int) []int32 {
	return t.offsets[b*tensor.BlockSlots : min((b+1)*tensor.BlockSlots, t.n)]
}

// evicted re-indexes when the token at position old goes (by = 1), or comes back
// (by = -1): what is older is by one nearer to, or further from, the newest.
func (t *table) evicted(old, by int32) {
	if t.offsets == nil {
		return
	}
	offsets := t.offsets[:t.n]
	for slot, pos := range t.Positions[:t.n] {
		if pos >= 0 && pos < old {
			offsets[slot] += by
		}
	}
}

// countEvicted finds the offsets from nothing: the tokens of the text behind a slot's,
// less those that are in the cache.
func (t *table) countEvicted(tokens int) {
	if t.offsets == nil {
		return
	}
	kept := make([]int32, 0, t.n)
	for _, pos := range t.Positions[:t.n] {
		if pos >= 0 {
			kept = append(kept, pos)
		}
	}
	slices.Sort(kept)
	for slot, pos := range t.Positions[:t.n] {
		t.offsets[slot] = 0
		if pos >= 0 {
			at, _ := slices.BinarySearch(kept, pos)
			t.offsets[slot] = int32(tokens-1) - pos - int32(len(kept)-1-at)
		}
	}
}

// turnHalf renews the rotate-half row of a slot whose key has changed.
func (s *Store) turnHalf(t *table, slot int) {
	if halves := t.planes[halfPlane].blocks; halves != nil {
		s.g.Layout.PutHalf(halves[slot/tensor.BlockSlots], t.rows()[slot/tensor.BlockSlots], slot%tensor.BlockSlots)
	}
}
