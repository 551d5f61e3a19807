package layer

import (
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
	"github.com/shoal-llm/shoal/topology"
)

// Norms of queries and keys over all heads of a token (OLMo 2). Each head's squares are summed
// separately. A row's total adds them in the order of heads, so it is the same for any cut. Of a
// prompt, every rank has some heads, so the sums are exchanged: one number for each head of a row. Of a
// decode row, the owner has all heads.

// exchangeSquares gathers the sums of the heads of each rank, for prompt rows.
var exchangeSquares = allGather("exchange-squares", func(b *Batch, rank int, yield func(Tile)) {
	for i := range b.Segments {
		s := &b.Segments[i]
		if !s.Prefill {
			continue
		}
		h, g := b.heads(s, rank), b.Dims.group()
		yield(Tile{HeadSquares, s.rows(), topology.Range{Lo: h.Lo * g, Hi: h.Hi * g}})
		yield(Tile{HeadSquares, s.rows(), topology.Range{Lo: b.Dims.Heads + h.Lo, Hi: b.Dims.Heads + h.Hi}})
	}
})

// sumSquares computes the sums of this rank's heads.
func (b *Processor) sumSquares() {
	d, ld, width := b.Dims, b.Dims.qkvWidth(), b.Dims.Heads+b.Dims.KVHeads
	for i := range b.batch.Segments {
		s := &b.batch.Segments[i]
		h, g := b.batch.heads(s, b.batch.Rank), d.group()
		b.each(s.N, func(t int) {
			row := s.First + t
			sum := func(lo, hi int) {
				for head := lo; head < hi; head++ {
					b.squares[row*width+head] = tensor.SumSquares(b.QKV[row*ld+head*d.HeadDim:][:d.HeadDim])
				}
			}
			sum(h.Lo*g, h.Hi*g)
			sum(d.Heads+h.Lo, d.Heads+h.Hi)
		})
	}
}

// allHeadsFactor returns the factor of the norm over all query heads, or all key heads, of a row,
// and the first of these heads. head is any of them.
func (b *Processor) allHeadsFactor(row, head int) (by float32, first int) {
	d := b.Dims
	sums := b.squares[row*(d.Heads+d.KVHeads):][:d.Heads+d.KVHeads]
	if head < d.Heads {
		sums = sums[:d.Heads]
	} else {
		sums, first = sums[d.Heads:], d.Heads
	}
	total := float32(0)
	for _, s := range sums {
		total += s
	}
	return kernel.RMSFactor(total, len(sums)*d.HeadDim, d.NormEps), first
}

// ownHead returns the number of a head among the query heads, or among the key heads.
func ownHead(d *Dims, head int) int {
	if head < d.Heads {
		return head
	}
	return head - d.Heads
}
