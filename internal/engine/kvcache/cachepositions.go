package kvcache

import (
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// AtCachePositions gives the tokens of an evicting policy positions within the cache instead of
// those in the text. The distance from a query to a slot counts only the tokens that are still
// there (StreamingLLM, arXiv 2309.17453, section 3.2), re-indexed in place as in EQUIP (section
// 4.2, figures 16 to 18).
//
// A row is written once, its key rotated at the token's true position, and never moves or changes.
// It is read at position
//
//	index(slot) = position(slot) + offset(slot)
//	offset(slot) = number of evicted tokens between the slot's and the newest
//
// and the query at its true one. Rotations add up and attention sees only differences. So these
// indices, counted back from the newest token, give the attention of indices 0..n-1 counted from
// the oldest. The tokens of a ring always have offset 0: only tokens older than an evicted one must
// be rotated, in a stream the sink alone.
//
// Arithmetic: a stored key is widened to float32, rotated by its offset with each product rounded
// (tensor.RopeRotateHalf), and rounded to the cache type before it is scored
// (tensor.KVLayout.RotateKeys). An offset of 0 changes no bit.
//
// half stores rotate_half of every key in addition to the keys, as EQUIP does (figures 16, 17). It takes
// half as much memory again as keys and values of equal width, and changes no bit.
func (p *Policy) AtCachePositions(half bool) *Policy {
	r := *p
	r.cachePositions, r.half = true, half
	r.spec += ",positions=cache"
	if half {
		r.spec += ",half=1"
	}
	return r.copied()
}

// CachePositions reports whether tokens have positions within the cache.
func (p *Policy) CachePositions() bool { return p.cachePositions }

// EndlessTokens is the longest sequence of an endless policy: float32 has every position up to it.
const EndlessTokens = 1 << 24

// Endless reports whether a sequence may be longer than the model's context: the policy keeps a bounded
// number of tokens, and counts distances within the cache. No policy (nil) is not endless.
func (p *Policy) Endless() bool { return p != nil && p.cachePositions && p.Eviction != nil }

// ContextLimit returns the longest sequence, in tokens, of a model with the given context.
func (p *Policy) ContextLimit(context int) int {
	if p.Endless() {
		return EndlessTokens
	}
	return context
}

// Rope returns cos and sin (KDim/2 each) of the rotation by n positions. It may be called
// concurrently. n is at most the position of the newest token.
type Rope func(n int) (cos, sin []float32)

// Ropes are the rotations of keys by cache layer; nil: keys are not rotated.
type Ropes []Rope

// Of returns the rotation of a layer's keys.
func (r Ropes) Of(layer int) Rope {
	if r == nil {
		return nil
	}
	return r[layer]
}

// ReadBlocks returns the blocks of a head as attention reads them. Under AtCachePositions, blocks
// with a key that must be rotated are copies in scratch, valid until its next use. All other blocks
// are those of Blocks.
func (s *Store) ReadBlocks(layer, head int, rope Rope, scratch *tensor.AttnScratch) [][]byte {
	t := s.table(layer, head)
	if t.offsets == nil {
		return t.rows()
	}
	l, n := t.layout, t.n
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

// blockOffsets returns the offsets of the slots in use of one block.
func (t *table) blockOffsets(b int) []int32 {
	return t.offsets[b*tensor.BlockSlots : min((b+1)*tensor.BlockSlots, t.n)]
}

// evicted updates the offsets when the token at position old is evicted (by = 1) or restored (by =
// -1): older tokens move by one towards the newest, or away from it.
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

// countEvicted computes the offsets from scratch: the number of later tokens in the text, minus
// those in the cache.
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

// updateHalf recomputes the rotate-half row of a slot whose key has changed.
func (s *Store) updateHalf(t *table, slot int) {
	if halves := t.planes[halfPlane].blocks; halves != nil {
		t.layout.PutHalf(halves[slot/tensor.BlockSlots], t.rows()[slot/tensor.BlockSlots], slot%tensor.BlockSlots)
	}
}
