package tensor

import (
	"fmt"
	"math"
)

// A landmark is one key that stands for several: the mean of a chunk's (ShadowKV, arXiv
// 2410.21465), or of a cluster's. Landmarks of 64 chunks lie as the keys of 64 slots do, and
// are scored by the same kernels in the same order; behind them is a number a chunk. They are
// float32 where the cache is, and bfloat16 otherwise.

// landmarks is the layout of a block of them.
func (l KVLayout) landmarks() KVLayout {
	if l.Type == F32 {
		return KVLayout{Type: F32, KDim: l.KDim}
	}
	return KVLayout{Type: BF16, KDim: l.KDim}
}

// LandmarkBytes is the size of BlockSlots landmarks and their numbers.
func (l KVLayout) LandmarkBytes() int { return l.landmarks().valuesAt() + 4*BlockSlots }

// LandmarkNumbers are the numbers of a block's landmarks.
func (l KVLayout) LandmarkNumbers(index []byte) []float32 {
	return floats(index[l.landmarks().valuesAt():][:4*BlockSlots])
}

// Landmark makes place `at` of an index block the mean of the keys in slots [first, to) of
// block, as they are stored: one chain of float32 additions in the order of the slots. Its
// number is the lowest cosine of a key to the mean: 0 where either is zero, -1 where one is
// not finite. row is scratch of 2*KDim elements.
func (l KVLayout) Landmark(index []byte, at int, block []byte, first, to int, row []float32) {
	b := l.landmarks()
	if at < 0 || at >= BlockSlots || len(index) < l.LandmarkBytes() || first >= to {
		panic(fmt.Sprintf("tensor: landmark of slots [%d,%d), at %d of %d bytes", first, to, at, len(index)))
	}
	l.check(block, first)
	l.check(block, to-1)
	k, mean := row[:l.KDim], row[l.KDim:2*l.KDim]
	clear(mean)
	for slot := first; slot < to; slot++ {
		l.getRow(block, slot, k)
		for i, x := range k {
			mean[i] += x
		}
	}
	for i := range mean {
		mean[i] /= float32(to - first)
	}
	b.putKey(index, at, mean)
	lowest := 1.0
	for slot := first; slot < to; slot++ {
		l.getRow(block, slot, k)
		lowest = min(lowest, cosine(k, mean))
	}
	l.LandmarkNumbers(index)[at] = float32(lowest)
}

// getRow is the key of a slot of any layout.
func (l KVLayout) getRow(block []byte, slot int, k []float32) {
	if l.Latent {
		l.getLatent(block, slot, k)
	} else {
		l.getKey(block, slot, block, k)
	}
}

// cosine has products that are exact in float64, so that fusing them changes nothing.
func cosine(a, b []float32) float64 {
	var dot, aa, bb float64
	for i := range a {
		x, y := float64(a[i]), float64(b[i])
		dot += x * y
		aa += x * x
		bb += y * y
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

// ScoreLandmarks are the products of g queries, q [g][KDim], with the first n landmarks: [g][n].
// Index blocks are those of an arena, or have 256 bytes behind them. The slice is valid until
// the next call.
func (s *AttnScratch) ScoreLandmarks(l KVLayout, index [][]byte, n int, q []float32, g int) []float32 {
	b := l.landmarks()
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
			copy(scores[r*n+first:], s.s[r][:some])
		}
	}
	s.ahead = nil
	return scores
}

// Pick lists the blocks in which any of the given pages, of `page` slots each, lie, the number
// of their slots up to slot n of the cache, and which of these are in a page. The pages come in
// order, and the last has slot n-1. Nothing is copied.
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
