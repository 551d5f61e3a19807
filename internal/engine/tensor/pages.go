package tensor

import (
	"fmt"
	"math"

	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
)

// A page is a run of 16, 32 or 64 slots within one block. The scores of its keys are bounded by
// their smallest and largest elements (Quest, arXiv 2406.10774):
//
//	q.k <= sum over d of max(q[d]*lo[d], q[d]*hi[d])
//
// That is the product of (max(q, 0), min(q, 0)) and (hi, lo). So the bounds of 64 pages are stored
// like the keys of 64 slots, [4 panels][2*KDim][16 pages], hi before lo, and scored by the same
// kernels in the same order. They are float32 if the cache is, otherwise bfloat16 rounded outwards,
// so that they remain bounds; for a bfloat16 cache they are exact.

// bounds returns the layout of an index block's keys.
func (l KVLayout) bounds() KVLayout {
	if l.Type == F32 {
		return KVLayout{Type: F32, KDim: 2 * l.KDim}
	}
	return KVLayout{Type: BF16, KDim: 2 * l.KDim}
}

// IndexBytes returns the size of the bounds of BlockSlots pages.
func (l KVLayout) IndexBytes() int { return l.bounds().valuesAt() }

// Bound extends the bounds of a page from its slots [first, from) to [first, to) of block; from =
// first resets the bounds. at is the page's place in the index block. row is scratch of 3*KDim elements.
func (l KVLayout) Bound(index []byte, at int, block []byte, first, from, to int, row []float32) {
	b := l.bounds()
	if at < 0 || at >= BlockSlots || len(index) < l.IndexBytes() || first > from || from >= to {
		panic(fmt.Sprintf("tensor: bounds of slots [%d,%d) of a page from %d on, at %d of %d bytes", from, to, first, at, len(index)))
	}
	l.check(block, first)
	l.check(block, to-1)
	k, all := row[:l.KDim], row[l.KDim:3*l.KDim]
	hi, lo := all[:l.KDim], all[l.KDim:]
	if from > first {
		b.getKey(index, at, nil, all)
	} else {
		for i := range hi {
			hi[i], lo[i] = kernel.NegInf, -kernel.NegInf
		}
	}
	for slot := from; slot < to; slot++ {
		if l.Latent {
			l.getLatent(block, slot, k)
		} else {
			l.getKey(block, slot, block, k)
		}
		for i, x := range k {
			if x > hi[i] {
				hi[i] = x
			}
			if x < lo[i] {
				lo[i] = x
			}
		}
	}
	if b.Type != l.Type {
		for i := range hi {
			hi[i], lo[i] = outwards(hi[i], 1), outwards(lo[i], -1)
		}
	}
	b.putKey(index, at, all)
}

// outwards returns the nearest bfloat16 not below x (sign 1) or not above it (-1).
func outwards(x, sign float32) float32 {
	bits := math.Float32bits(x)
	if bits&0xffff != 0 && x*sign > 0 {
		bits += 1 << 16
	}
	return math.Float32frombits(bits &^ 0xffff)
}

// ScorePages computes for each of the first n pages the largest bound over g queries, q [g][KDim].
// Index blocks must be from an arena, or be followed by 256 readable bytes. A score that is NaN
// becomes -Inf. The slice is valid until the next call.
func (s *AttnScratch) ScorePages(l KVLayout, index [][]byte, n int, q []float32, g int) []float32 {
	b := l.bounds()
	s.begin(b, g)
	if need := g * b.KDim; cap(s.q) < need {
		s.q = make([]float32, need)
	}
	s.q = s.q[:g*b.KDim]
	for r := range g {
		row, to := q[r*l.KDim:][:l.KDim], s.q[r*b.KDim:][:b.KDim]
		for i, x := range row {
			to[i], to[l.KDim+i] = 0, 0
			switch {
			case x > 0:
				to[i] = x
			case x < 0:
				to[l.KDim+i] = x
			}
		}
	}
	if cap(s.pages) < n {
		s.pages = make([]float32, n+n/4)
	}
	pages := s.pages[:n]
	for first := 0; first < n; first += BlockSlots {
		block, some := index[first/BlockSlots], min(BlockSlots, n-first)
		s.ahead = nil
		if first+some < n {
			s.ahead = index[first/BlockSlots+1]
		}
		s.score(b, block, s.q, 0, g, some)
		for i := range some {
			pages[first+i] = kernel.NegInf
		}
		for r := range g {
			kernel.Active.Raise(pages[first:first+some], s.s[r][:some], 0)
		}
	}
	s.ahead = nil
	return pages
}

// Gather lists blocks that hold the given pages of page slots each, contiguously: blocks of the
// cache where the pages are adjacent there, otherwise copies, which are valid until the next use of
// the scratch. Attention over them is attention over a cache that holds nothing else.
func (s *AttnScratch) Gather(l KVLayout, blocks [][]byte, pages []int32, page int) [][]byte {
	each := BlockSlots / page
	n := (len(pages) + each - 1) / each
	copies := s.Blocks(n, l.BlockBytes())
	s.list = s.list[:0]
	for i := range n {
		run := pages[i*each : min((i+1)*each, len(pages))]
		for _, p := range pages[min((i+1)*each, len(pages)):min((i+2)*each, len(pages))] {
			s.fetchSome(l, blocks[int(p)/each], prefixMask(page)<<(int(p)%each*page))
		}
		if first := int(run[0]); first%each == 0 && int(run[len(run)-1]) == first+len(run)-1 {
			s.list = append(s.list, blocks[first/each])
			continue
		}
		for j, p := range run {
			l.CopyPage(copies[i], j*page, blocks[int(p)/each], int(p)%each*page, page)
		}
		s.list = append(s.list, copies[i])
	}
	return s.list
}

// CopyPage copies n slots, in whole panels.
func (l KVLayout) CopyPage(dst []byte, to int, src []byte, from, n int) {
	for _, p := range l.planes() {
		copy(dst[p.at+to*p.row:][:n*p.row], src[p.at+from*p.row:])
	}
}
