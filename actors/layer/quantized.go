package layer

import (
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
	"github.com/shoal-llm/shoal/topology"
)

// Steps with quantized weights. The thread that computes the input of a product also quantizes it,
// to blocks of 40 bytes for every 32 numbers, while it is in that thread's CPU cache. This saves a
// synchronization of the threads. On several ranks it happens before the exchange: 0.31 of the
// bytes cross the wire, and each input is quantized once instead of on every rank. The residual
// stream cannot be quantized, so it is not replicated: each rank owns some rows, adds the sums for
// them, and sends their quantized norm to all ranks. The blocks equal those of the product itself, so
// the bits are the same.
//
// Bytes received by all ranks per row, for n ranks, hidden size h, FFN size f, attention as wide as
// hidden, and mapping gather: 4(n-1)(3h+f) without quantization; with it, 1.25(n-1)(3h+f) for blocks
// and 8h(n-1)/n for sums. The price is one or two synchronizations a layer.
//
// A decode-only step with mapping reduce pays no price: its sums go to the rows' owners in any case,
// and owners send quantized norms where they would send residual rows. Only the last layer
// sends residual rows, because the head reads every row. With gather, steps with few or no
// prompt rows quantize only the outputs of attention and FFN, which needs no owned rows.

// quantizedRows is the number of prompt rows from which rows are owned and norms quantized. Below
// it, the additional synchronization costs more than the saved bytes.
const quantizedRows = 32

// exchangeNorm gathers the quantized norms of each rank's rows on every rank.
var exchangeNorm = allGather("exchange-norm", func(b *Batch, rank int, yield func(Tile)) {
	b.ownedTiles(rank, QuantizedNorm, topology.Range{Lo: 0, Hi: quantizedFloats(b.Dims.Hidden)}, yield)
})

// quantized is the quantized activations of such a step.
type quantized struct {
	norm []float32 // (T, quantizedFloats(Hidden)): norm of X
	mid  []float32 // (T, quantizedFloats(attnCols)) for attention, then (T, quantizedFloats(FFN)) for activations

	row, addRow func(t int) // norm of a row; residual sum and norm of a row
}

// quantizedFloats returns the size of a row's blocks in units of float32, so that tiles can hold them.
func quantizedFloats(cols int) int { return tensor.QuantizedBytes(cols) / 4 }

// quantizedCols returns the columns of blocks that hold columns c.
func quantizedCols(c topology.Range) topology.Range {
	return topology.Range{Lo: quantizedFloats(c.Lo), Hi: quantizedFloats(c.Hi)}
}

// quantizable reports whether the step quantizes activations, and whether it also quantizes norms,
// for which each row needs an owner. All ranks get the same result.
func (b *Batch) quantizable() (activations, owned bool) {
	d, alone := b.Dims, b.alone()
	whole := func(n int) bool { return n%tensor.BlockWidth == 0 }
	on := kernel.Quantized(b.Type) && len(b.adapted) == 0 && d.MoE.Experts == 0 && d.Latent.Rank == 0 && d.Recurrent.Layers == 0 &&
		whole(d.Hidden)
	for i := range d.kinds() {
		w := d.of(i)
		on = on && whole(w.group()*w.HeadDim) && whole(w.FFN)
	}
	// A parallel FFN reads the norm that attention read, of all rows.
	owned = on && !d.Parallel && (alone || b.T-b.decode >= quantizedRows || b.Place.Mapping == topology.Reduce && !b.HasPrefill())
	activations = on && (owned || b.Place.Mapping == topology.Gather)
	return activations, activations && owned
}

func (b *Processor) growQuantized() {
	d, q, rows := b.Dims, &b.quantized, b.maxRows
	widest := d.maxOver(func(d *Dims) int { return max(d.attnCols(), d.FFN) })
	q.norm, q.mid = growF(q.norm, rows*quantizedFloats(d.Hidden)), growF(q.mid, rows*quantizedFloats(widest))
	if q.row != nil {
		return
	}
	h, ld := d.Hidden, quantizedFloats(d.Hidden)
	q.row = func(t int) {
		t += b.firstRow
		b.normRow(t)
		tensor.Quantize(tensor.FloatBytes(q.norm[t*ld:]), 4*ld, b.batch.Type, b.Norm[t*h:], h, h, 1)
	}
	q.addRow = func(t int) {
		b.residualRow(t)
		q.row(t)
	}
}

// owned returns the rows that a rank projects and sums: the decode rows of its sequences and its
// part of the prompt rows, merged where they are adjacent.
func (b *Batch) owned(rank int) [2]topology.Range {
	decode, prompts := b.decodeRows(rank), b.rows[rank]
	if decode.Hi == prompts.Lo {
		return [2]topology.Range{{Lo: decode.Lo, Hi: prompts.Hi}}
	}
	return [2]topology.Range{decode, prompts}
}

// ownedTiles yields the given columns of the rows that a rank owns.
func (b *Batch) ownedTiles(rank int, of Activation, cols topology.Range, yield func(Tile)) {
	for _, r := range b.owned(rank) {
		yield(Tile{of, r, cols})
	}
}

// normQuantized computes and quantizes the norm of rows.
func (b *Processor) normQuantized(weight []float32, rows [2]topology.Range) {
	b.normWeight = weight
	for _, r := range rows {
		b.firstRow = r.Lo
		b.each(r.Len(), b.quantized.row)
	}
}

// addNormOwned is addNorm for the rows that this rank owns, quantized.
func (b *Processor) addNormOwned(w *Weights) {
	for _, r := range b.batch.owned(b.batch.Rank) {
		b.addNorm(w, r, b.quantized.addRow)
	}
}

// addOwned adds the output of attention for the rows that this rank owns.
func (w *Weights) addOwned(b *Processor) {
	for _, r := range b.batch.owned(b.batch.Rank) {
		b.addResidual(w.PostAttnNorm, w.MixFactor, r)
	}
}

// quantize quantizes rows t and columns c of m, whose rows have `width` elements, into the blocks of
// the same rows and columns. It does nothing if the step is not quantized.
func (b *Processor) quantize(m []float32, ldm, width int, t, c topology.Range) {
	if b.batch.step.quantized {
		ld := quantizedFloats(width)
		to := tensor.FloatBytes(b.quantized.mid[t.Lo*ld+quantizedFloats(c.Lo):])
		tensor.Quantize(to, 4*ld, b.batch.Type, m[t.Lo*ldm+c.Lo:], ldm, c.Len(), t.Len())
	}
}

// multiplyQuantized multiplies rows t, all width columns, by w into y.
func (b *Processor) multiplyQuantized(y []float32, w *tensor.Weight, width int, t topology.Range) {
	ld := quantizedFloats(width)
	b.products = append(b.products, tensor.Product{Y: y, LdY: b.Dims.Hidden, W: w, R1: w.Rows})
	b.Pool.MatMulQuantized(b.products, tensor.FloatBytes(b.quantized.mid[t.Lo*ld:]), 4*ld, t.Len())
	b.products = b.products[:0]
}
