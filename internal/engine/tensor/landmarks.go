package tensor

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
)

// A landmark is one key that represents several: the mean of a chunk's keys (ShadowKV, arXiv
// 2410.21465), or of a cluster's. Landmarks of 64 chunks are stored like the keys of 64 slots and
// scored by the same kernels in the same order; after them there is one number per chunk. They may
// have any type that a cache can have.

// landmarks returns the layout of a block of landmarks.
func (l KVLayout) landmarks(t DType) KVLayout { return KVLayout{Type: t, KDim: l.KDim} }

// LandmarkBytes returns the size of BlockSlots landmarks of type t, of their numbers, and of one cache
// line of words for the selector.
func (l KVLayout) LandmarkBytes(t DType) int { return l.landmarks(t).BlockBytes() + 4*BlockSlots + 64 }

// LandmarkWords returns the 8 words of that cache line.
func (l KVLayout) LandmarkWords(t DType, index []byte) []uint64 {
	return unsafe.Slice((*uint64)(unsafe.Pointer(&index[l.LandmarkBytes(t)-64])), 8)
}

// LandmarkNumbers returns the numbers of a block's landmarks.
func (l KVLayout) LandmarkNumbers(t DType, index []byte) []float32 {
	return floats(index[l.landmarks(t).BlockBytes():][:4*BlockSlots])
}

// Landmark sets place at of an index block to the mean of the stored keys in slots [first, to) of
// block: one chain of float32 additions in slot order. Its number is the lowest cosine of a key and
// the mean: 0 if either is zero, -1 if one is not finite. row is scratch of (1+to-first)*KDim
// elements.
func (l KVLayout) Landmark(t DType, index []byte, at int, block []byte, first, to int, row []float32) {
	b := l.landmarks(t)
	if at < 0 || at >= BlockSlots || len(index) < l.LandmarkBytes(t) || first >= to {
		panic(fmt.Sprintf("tensor: landmark of slots [%d,%d), at %d of %d bytes", first, to, at, len(index)))
	}
	l.check(block, first)
	l.check(block, to-1)
	mean, keys := row[:l.KDim], row[l.KDim:(1+to-first)*l.KDim]
	clear(mean)
	for i := range to - first {
		k := keys[i*l.KDim:][:l.KDim]
		if l.Latent {
			l.getLatent(block, first+i, k)
		} else {
			l.getKey(block, first+i, block, k)
		}
		for d, x := range k {
			mean[d] += x
		}
	}
	square := 0.0
	for d := range mean {
		mean[d] /= float32(to - first)
		square += float64(mean[d]) * float64(mean[d])
	}
	b.putKey(index, at, mean)
	lowest := 1.0
	for i := range to - first {
		lowest = min(lowest, cosine(keys[i*l.KDim:][:l.KDim], mean, square))
	}
	l.LandmarkNumbers(t, index)[at] = float32(lowest)
}

// cosine returns the cosine of a and b, where bb is the square of b. The products are exact in
// float64, so fusing them changes nothing.
func cosine(a, b []float32, bb float64) float64 {
	var dot, aa float64
	for i := range a {
		x := float64(a[i])
		dot += x * float64(b[i])
		aa += x * x
	}
	c := dot / float64(math.Sqrt(aa)*math.Sqrt(bb))
	switch {
	case aa == 0 || bb == 0:
		return 0
	case c != c:
		return -1
	}
	return c
}

// SetLandmark stores a landmark at place at of an index block, rounded to its type.
func (l KVLayout) SetLandmark(t DType, index []byte, at int, key []float32) {
	if at < 0 || at >= BlockSlots || len(index) < l.LandmarkBytes(t) || len(key) != l.KDim {
		panic(fmt.Sprintf("tensor: landmark of %d elements, at %d of %d bytes", len(key), at, len(index)))
	}
	l.landmarks(t).putKey(index, at, key)
}

// MeanKey computes the mean of the stored keys in slots [first, to) of a cache: one chain of
// float32 additions in slot order. key is scratch of KDim elements.
func (l KVLayout) MeanKey(mean []float32, blocks [][]byte, first, to int, key []float32) {
	clear(mean)
	for slot := first; slot < to; slot++ {
		block := blocks[slot/BlockSlots]
		l.check(block, slot%BlockSlots)
		if l.Latent {
			l.getLatent(block, slot%BlockSlots, key)
		} else {
			l.getKey(block, slot%BlockSlots, block, key)
		}
		for d, x := range key {
			mean[d] += x
		}
	}
	for d := range mean {
		mean[d] /= float32(to - first)
	}
}

// ScoreLandmarkRuns computes the products of g queries with the landmarks in runs, in order:
// [g][n]. runs holds pairs of first landmark and end. It is like ScoreLandmarks, but not for Int8.
func (s *AttnScratch) ScoreLandmarkRuns(l KVLayout, t DType, index [][]byte, runs []int32, q []float32, g int) (scores []float32, n int) {
	b := l.landmarks(t)
	s.begin(b, g)
	for k := 0; k < len(runs); k += 2 {
		n += int(runs[k+1] - runs[k])
	}
	if cap(s.pages) < g*n {
		s.pages = make([]float32, g*n+g*n/4)
	}
	scores, s.ahead = s.pages[:g*n], nil
	at := 0
	for k := 0; k < len(runs); k += 2 {
		for lo, hi := int(runs[k]), int(runs[k+1]); lo < hi; {
			in := lo % BlockSlots
			some := min(hi-lo, BlockSlots-in)
			s.scoreSome(b, index[lo/BlockSlots], q, 0, g, prefixMask(some)<<in)
			for r := range g {
				copy(scores[r*n+at:], s.s[r][in:in+some])
			}
			lo, at = lo+some, at+some
		}
	}
	return scores, n
}

// ScoreLandmarks computes the products of g queries, q [g][KDim], with the first n landmarks:
// [g][n]. Index blocks must be from an arena, or be followed by 256 readable bytes. The slice is
// valid until the next call.
func (s *AttnScratch) ScoreLandmarks(l KVLayout, t DType, index [][]byte, n int, q []float32, g int) []float32 {
	b := l.landmarks(t)
	s.begin(b, g)
	if cap(s.pages) < g*n {
		s.pages = make([]float32, g*n+g*n/4)
	}
	scores := s.pages[:g*n]
	for first := 0; first < n; first += BlockSlots {
		some := min(BlockSlots, n-first)
		s.ahead = nil
		if first+some < n {
			s.ahead = index[first/BlockSlots+1]
		}
		s.score(b, index[first/BlockSlots], q, 0, g, some)
		for r := range g {
			if t == Int8 {
				kernel.Active.Mul64(&s.s[r], b.scales(index[first/BlockSlots], 0))
			}
			copy(scores[r*n+first:], s.s[r][:some])
		}
	}
	s.ahead = nil
	return scores
}

// Pick lists the blocks that contain any of the given pages of page slots each, the number of their
// slots up to slot n of the cache, and a mask of the slots in a page. The pages are ascending, and
// the last contains slot n-1. Nothing is copied.
func (s *AttnScratch) Pick(blocks [][]byte, pages []int32, page, n int) ([][]byte, int, []uint64) {
	s.list = s.list[:0]
	mask, each, last := s.Mask(min(len(pages), len(blocks))*BlockSlots), BlockSlots/page, -1
	for _, p := range pages {
		if b := int(p) / each; b != last {
			mask[len(s.list)], last = 0, b
			s.list = append(s.list, blocks[b])
		}
		mask[len(s.list)-1] |= prefixMask(page) << (int(p) % each * page)
	}
	return s.list, (len(s.list)-1)*BlockSlots + (n-1)%BlockSlots + 1, mask[:len(s.list)]
}

// PickSlots lists the blocks with any slot in mask (a bit per slot of the cache's first n), the
// number of their slots, and a mask of the selected ones. The last slot must be selected. Nothing
// is copied; mask is modified.
func (s *AttnScratch) PickSlots(blocks [][]byte, mask []uint64, n int) ([][]byte, int, []uint64) {
	s.list = s.list[:0]
	for b, bits := range mask {
		if bits != 0 {
			mask[len(s.list)] = bits
			s.list = append(s.list, blocks[b])
		}
	}
	return s.list, (len(s.list)-1)*BlockSlots + (n-1)%BlockSlots + 1, mask[:len(s.list)]
}
