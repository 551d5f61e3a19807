package layer

import (
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// Steps with weights that are quantised. What a product reads is quantized to blocks of 40
// bytes for every 32 numbers by whoever computed it, while it is in its caches, so threads
// need not meet once more; over several ranks before it crosses the wire: 0.31 of the
// bytes, and quantized once instead of on every rank. The
// residual stream cannot be quantized, so it is not replicated: each rank keeps the rows
// that it owns, adds what comes for them, and gives their norm to all, quantized. The
// blocks are those that the product would make, so the bits are the same.
//
// Bytes that arrive anywhere for a row of n ranks, hidden h, FFN f, attention as wide
// as hidden, in the mapping gather: before 4(n-1)(3h+f), now 1.25(n-1)(3h+f) for
// blocks and 8h(n-1)/n for sums. The price is one or two synchronisations a layer.
//
// A step that only decodes has no price to pay with the mapping reduce: its sums go to
// the owners of rows as it is, and where they gave their residual rows to all, they now
// give the quantized norms. Only the last layer keeps the old way, since the head reads
// every row. With gather, steps of few prompt rows or none quantize what attention and the
// FFN give, for which nothing has to be owned.

// quantizedRows are the prompt rows of a step from which rows are owned and norms quantized:
// below, another synchronisation costs more than the bytes.
const quantizedRows = 32

// exchangeNorm: the quantized norms of each rank's rows, whole to everybody.
var exchangeNorm = allGather("exchange-norm", func(b *Batch, rank int, yield func(Tile)) {
	b.ownedTiles(rank, QuantizedNorm, topology.Range{Lo: 0, Hi: quantizedFloats(b.Dims.Hidden)}, yield)
})

// quantized are the quantized activations of such a step.
type quantized struct {
	norm []float32 // (T, quantizedFloats(Hidden)): the norm of X
	mid  []float32 // (T, quantizedFloats(attnCols)) of attention, then (T, quantizedFloats(FFN)) of activations

	row, addRow func(t int) // norm of a row, or residual sum and norm
}

// quantizedFloats is the size of a row's blocks, counted as float32 so that they
// travel as tiles do.
func quantizedFloats(cols int) int { return tensor.QuantizedBytes(cols) / 4 }

// quantizedCols are the columns of blocks that hold those columns.
func quantizedCols(c topology.Range) topology.Range {
	return topology.Range{Lo: quantizedFloats(c.Lo), Hi: quantizedFloats(c.Hi)}
}

// quantizable says what of this step is quantized: activations, and besides them norms, for
// which rows are owned. A function of what all ranks know.
func (b *Batch) quantizable() (activations, owned bool) {
	d, alone := b.Dims, b.alone()
	whole := func(n int) bool { return n%tensor.BlockWidth == 0 }
	on := tensor.Quantised(b.Type) && d.MoE.Experts == 0 && d.Latent.Rank == 0 &&
		whole(d.Hidden) && whole(d.group()*d.HeadDim) && whole(d.FFN)
	owned = on && (alone || b.T-b.decode >= quantizedRows || b.Place.Mapping == topology.Reduce && !b.HasPrefill())
	activations = on && (owned || b.Place.Mapping == topology.Gather)
	return activations, activations && owned
}

func (b *Processor) roomQuantized() {
	d, q, rows := &b.Dims, &b.quantized, b.maxRows
	q.norm, q.mid = growF(q.norm, rows*quantizedFloats(d.Hidden)), growF(q.mid, rows*quantizedFloats(max(d.attnCols(), d.FFN)))
	if q.row != nil {
		return
	}
	h, ld := d.Hidden, quantizedFloats(d.Hidden)
	q.row = func(t int) {
		t += b.firstRow
		b.normRow(t)
		tensor.Quantize(floatBytes(q.norm[t*ld:]), 4*ld, b.batch.Type, b.Norm[t*h:], h, h, 1)
	}
	q.addRow = func(t int) {
		b.residualRow(t)
		q.row(t)
	}
}

// owned are the rows that a rank projects and adds up: the decode rows of its sequences,
// and its cut of the prompt rows; as one run if they are.
func (b *Batch) owned(rank int) [2]topology.Range {
	decode, prompts := b.decodeRows(rank), b.rows[rank]
	if decode.Hi == prompts.Lo {
		return [2]topology.Range{{Lo: decode.Lo, Hi: prompts.Hi}}
	}
	return [2]topology.Range{decode, prompts}
}

// ownedTiles are columns of a rank's rows.
func (b *Batch) ownedTiles(rank int, of Activation, cols topology.Range, yield func(Tile)) {
	for _, r := range b.owned(rank) {
		yield(Tile{of, r, cols})
	}
}

// normQuantized quantizes the norm of some rows.
func (b *Processor) normQuantized(weight []float32, rows [2]topology.Range) {
	b.normWeight = weight
	for _, r := range rows {
		b.firstRow = r.Lo
		b.each(r.Len(), b.quantized.row)
	}
}

// addNormOwned is addNorm of the rows that this rank owns, quantized.
func (b *Processor) addNormOwned(w *Weights) {
	for _, r := range b.batch.owned(b.batch.Rank) {
		b.addNorm(w, r, b.quantized.addRow)
	}
}

// addOwned is addResidual for the own rows.
func (b *Processor) addOwned(norm []float32) {
	for _, r := range b.batch.owned(b.batch.Rank) {
		b.addResidual(norm, r)
	}
}

// quantize quantizes rows t, columns c of m, of which a row has width, to the blocks of the same
// place, if the step is quantized.
func (b *Processor) quantize(m []float32, ldm, width int, t, c topology.Range) {
	if b.batch.step.quantized {
		ld := quantizedFloats(width)
		tensor.Quantize(floatBytes(b.quantized.mid[t.Lo*ld+quantizedFloats(c.Lo):]), 4*ld, b.batch.Type, m[t.Lo*ldm+c.Lo:], ldm, c.Len(), t.Len())
	}
}

// multiplyQuantized multiplies rows t, all width columns, by w into y.
func (b *Processor) multiplyQuantized(y []float32, w *tensor.Weight, width int, t topology.Range) {
	ld := quantizedFloats(width)
	b.products = append(b.products, tensor.Product{Y: y, LdY: b.Dims.Hidden, W: w, R1: w.Rows})
	b.Pool.MatMulQuantized(b.products, floatBytes(b.quantized.mid[t.Lo*ld:]), 4*ld, t.Len())
	b.products = b.products[:0]
}
