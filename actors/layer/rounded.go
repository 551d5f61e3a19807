package layer

import (
	"slices"

	"shoal/collective"
	"shoal/tensor"
	"shoal/topology"
)

// Steps over several ranks, weights quantised. What a product reads is rounded to a
// record of 40 bytes for every 32 numbers before it crosses the wire, by whoever
// computed it: 0.31 of the bytes, and rounded once instead of on every rank. The
// residual stream cannot be rounded, so it is not replicated: each rank keeps the rows
// that it owns, adds what comes for them, and gives their norm to all, rounded. The
// records are those that the product would make, so the bits are the same.
//
// Bytes that arrive anywhere for a row of n ranks, hidden h, FFN f, attention as wide
// as hidden, in the mapping gather: before 4(n-1)(3h+f), now 1.25(n-1)(3h+f) for
// records and 8h(n-1)/n for sums. The price is one or two synchronisations a layer.
//
// A step that only decodes has no price to pay with the mapping reduce: its sums go to
// the owners of rows as it is, and where they gave their residual rows to all, they now
// give the rounded norms. Only the last layer keeps the old way, since the head reads
// every row. With gather, steps of few prompt rows or none round what attention and the
// FFN give, for which nothing has to be owned.

// roundedRows are the prompt rows of a step from which rows are owned and norms rounded:
// below, another synchronisation costs more than the bytes.
const roundedRows = 32

// rounded is the state of such a step.
type rounded struct {
	on    bool        // for what attention and the FFN give
	own   bool        // for norms too: each rank keeps the residual stream of its rows
	norms []float32   // (T, recordFloats(Hidden)): records of the norm of X
	mid   []float32   // (T, recordFloats(attnCols)) of attention, then (T, recordFloats(FFN)) of activations
	part  [][]float32 // ScatterDown, ScatterPrompt: some rows of partial
	owner func(t int) // norm of a row
}

// recordFloats is the size of a row's records, counted as float32 so that they
// travel as tiles do.
func recordFloats(cols int) int { return tensor.RoundedBytes(cols) / 4 }

// roundable says what of this step is rounded: a function of what all ranks know.
func (b *Batch) roundable() (on, own bool) {
	d := b.Dims
	whole := func(n int) bool { return n%tensor.BlockWidth == 0 }
	on = len(b.Place.Slices) > 1 && tensor.Quantised(b.Type) && d.MoE.Experts == 0 && d.Latent.Rank == 0 &&
		whole(d.Hidden) && whole(d.group()*d.HeadDim) && whole(d.FFN)
	own = on && (b.T-b.decode >= roundedRows || b.Place.Mapping == topology.Reduce && !b.HasPrefill())
	return on && (own || b.Place.Mapping == topology.Gather), own
}

// prepare makes room.
func (r *rounded) prepare(b *Batch) {
	d := b.Dims
	if r.on, r.own = b.roundable(); !r.on {
		return
	}
	rows := b.MaxRows()
	r.norms, r.mid = growF(r.norms, rows*recordFloats(d.Hidden)), growF(r.mid, rows*recordFloats(max(d.attnCols(), d.FFN)))
	if r.owner == nil {
		r.owner = func(t int) { b.normRow(t + b.firstRow) }
	}
}

// roundedDecode is Program for such a step without prompt rows, which is of the mapping
// reduce.
func roundedDecode(last bool) []Phase {
	p := []Phase{NormAttention, ProjectQKV, Attend, ProjectOut}
	if last {
		return append(p, ExchangeOut, NormRows, FeedForward, ReduceDown, Finish)
	}
	return append(p, NormFFN, ExchangeNorm, FeedForward, ScatterDown, Finish)
}

// roundedProgram is Program for such a step with prompt rows, and with decode rows or none.
func roundedProgram(m topology.Mapping, qkvLocal, decode, last bool) []Phase {
	p := []Phase{NormAttention, ExchangeNorm, ProjectQKV}
	if m == topology.Gather && !qkvLocal {
		p = append(p, ExchangeQKV)
	}
	p = append(p, Attend, ExchangeAttention, ProjectOut)
	if m == topology.Gather {
		p = append(p, ExchangeOutRows)
	}
	p = append(p, NormFFN, ExchangeNorm, FeedForward)
	switch {
	case m == topology.Gather:
		p = append(p, ExchangeFFN, ProjectDown, ExchangeDownRows)
	case decode:
		p = append(p, ScatterDown, ScatterPrompt)
	default:
		p = append(p, ScatterPrompt)
	}
	if p = append(p, Finish); last {
		p = append(p, ExchangeLast)
	}
	return p
}

// owned are the rows whose residual stream a rank keeps: the decode rows of its
// sequences, and its cut of the prompt rows.
func (b *Batch) owned(rank int) [2]topology.Range {
	return [2]topology.Range{b.decodeRows(rank), b.rows[rank]}
}

// normOwned rounds the norm of the own rows.
func (b *Batch) normOwned(weight []float32) { b.normRounded(weight, b.owned(b.Rank)) }

// normRounded rounds the norm of some rows.
func (b *Batch) normRounded(weight []float32, rows [2]topology.Range) {
	h, ld := b.Dims.Hidden, recordFloats(b.Dims.Hidden)
	b.normWeight = weight
	for _, r := range rows {
		if r.Len() == 0 {
			continue
		}
		b.firstRow = r.Lo
		b.each(r.Len(), b.rounded.owner)
		b.Pool.Round(floatBytes(b.rounded.norms[r.Lo*ld:]), 4*ld, b.Type, b.Norm[r.Lo*h:], h, h, r.Len())
	}
}

// addOwned is addResidual for the own rows.
func (b *Batch) addOwned(norm []float32) {
	for _, r := range b.owned(b.Rank) {
		b.addResidual(norm, r)
	}
}

// roundMid rounds rows t, columns c of m, which is as wide as all of them, to the
// records of the same place.
func (b *Batch) roundMid(m []float32, ldm, width int, t, c topology.Range) {
	if t.Len() == 0 || c.Len() == 0 {
		return
	}
	ld := recordFloats(width)
	b.Pool.Round(floatBytes(b.rounded.mid[t.Lo*ld+recordFloats(c.Lo):]), 4*ld, b.Type, m[t.Lo*ldm+c.Lo:], ldm, c.Len(), t.Len())
}

// roundAttention rounds what this rank attended.
func (b *Batch) roundAttention() {
	width := b.Dims.attnCols()
	b.roundMid(b.Attn, width, width, b.decodeRows(b.Rank), topology.Range{Lo: 0, Hi: width})
	for i := range b.Segments {
		s := &b.Segments[i]
		if !s.Prefill {
			continue
		}
		b.roundMid(b.Attn, width, width, topology.Range{Lo: s.First, Hi: s.First + s.N}, b.attentionCols(b.heads(s, b.Rank)))
	}
}

// attentionCols are the columns of attention outputs of heads h.
func (b *Batch) attentionCols(h topology.Range) topology.Range {
	w := b.Dims.group() * b.Dims.valueDim()
	return topology.Range{Lo: h.Lo * w, Hi: h.Hi * w}
}

// records are the columns of records that hold those columns.
func records(c topology.Range) topology.Range {
	return topology.Range{Lo: recordFloats(c.Lo), Hi: recordFloats(c.Hi)}
}

// multiplyMid multiplies rows t, all width columns, by w into y.
func (b *Batch) multiplyMid(y []float32, w *tensor.Weight, width int, t topology.Range) {
	ld := recordFloats(width)
	b.products = append(b.products, tensor.Product{Y: y, LdY: b.Dims.Hidden, W: w, R1: w.Rows})
	b.Pool.MatMulRounded(b.products, floatBytes(b.rounded.mid[t.Lo*ld:]), 4*ld, t.Len())
	b.products = b.products[:0]
}

// normParts: every rank's rows, whole.
func (b *Batch) normParts(rank int, yield func([]float32, int, tile)) {
	ld := recordFloats(b.Dims.Hidden)
	for _, r := range b.owned(rank) {
		yield(b.rounded.norms, ld, tile{r, topology.Range{Lo: 0, Hi: ld}})
	}
}

// lastParts: the residual stream itself, which the head reads.
func (b *Batch) lastParts(rank int, yield func([]float32, int, tile)) {
	for _, r := range b.owned(rank) {
		yield(b.X, b.Dims.Hidden, tile{r, topology.Range{Lo: 0, Hi: b.Dims.Hidden}})
	}
}

// outRowPair and downRowPair: columns that `from` projected of the rows of `to`.
func (b *Batch) outRowPair(from, to int, yield func([]float32, int, tile)) {
	b.rowPair(b.Place.Slices[from].Out, to, yield)
}

func (b *Batch) downRowPair(from, to int, yield func([]float32, int, tile)) {
	b.rowPair(b.Place.Slices[from].Down, to, yield)
}

func (b *Batch) rowPair(cols topology.Range, to int, yield func([]float32, int, tile)) {
	for _, r := range b.owned(to) {
		yield(b.Y, b.Dims.Hidden, tile{r, cols})
	}
}

// scatter sums the own units' nodes over the ranks: of the rows from first on each rank
// gets the next so many.
func (b *Batch) scatter(op collective.OpID, g *collective.Group, first int, rows func(rank int) int, done func(error)) {
	units, h, n := tensor.Units(b.Dims.FFN), b.Dims.Hidden, len(b.Place.Slices)
	b.bounds = append(b.bounds[:0], 0)
	for r := range n {
		b.bounds = append(b.bounds, b.bounds[r]+rows(r)*h)
	}
	b.rounded.part = slices.Grow(b.rounded.part[:0], len(b.partial))
	for _, p := range b.partial {
		b.rounded.part = append(b.rounded.part, p[first*h:first*h+b.bounds[n]])
	}
	lo, hi := b.bounds[b.Rank], b.bounds[b.Rank+1]
	b.summed = topology.Range{Lo: first + lo/h, Hi: first + hi/h}
	g.ReduceScatterTree(op, units, b.allNodes(units), b.rounded.part, b.bounds, b.Y[first*h+lo:first*h+hi], done)
}
