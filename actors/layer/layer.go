// Package layer is one transformer layer on one socket: an actor that walks a
// batch through the phases of program.go. Compute runs on the socket's
// executor, exchanges on the collective group; the actor only decides what is
// next.
package layer

import (
	"time"

	"shoal/tensor"
	"shoal/topology"
)

// Weights are the slices of one layer's matrices that a socket holds. A nil
// matrix is an empty slice. Gather: rows by topology.Slice. Reduce: Q, K, V, O
// whole, Gate and Up by rows of the FFN slice, Down all rows by FFN units. A layer
// with Experts has no Gate, Up and Down.
type Weights struct {
	Q, K, V, O, Gate, Up, Down                             *tensor.Weight
	AttnNorm, FFNNorm                                      []float32 // (Hidden)
	PostAttnNorm, PostFFNNorm                              []float32 // (Hidden), of what attention and FFN add; or nil
	QNorm, KNorm                                           []float32 // (HeadDim), of each head before its rotation; or nil
	QBias, KBias, VBias, OBias, GateBias, UpBias, DownBias []float32 // whole rows, or nil
	Experts                                                *Experts  // on every socket, or nil on all
	Latent                                                 *Latent   // in place of Q, K and V; or nil

	Window int // sliding window in tokens, the newest included; 0: none
	Rope   int // which of the batch's rotations: 0, or 1 where layers with a window have their own
}

type closer interface {
	Close() error
	Bytes() int64
}

func (w *Weights) all() []closer {
	var all []closer
	for _, m := range append([]*tensor.Weight{w.Q, w.K, w.V, w.O, w.Gate, w.Up, w.Down}, w.Latent.matrices()...) {
		if m != nil {
			all = append(all, m)
		}
	}
	if w.Experts != nil {
		all = append(all, w.Experts.weights()...)
	}
	return all
}

// Close releases the matrices.
func (w *Weights) Close() {
	for _, m := range w.all() {
		m.Close()
	}
}

// Bytes is the memory of the matrices.
func (w *Weights) Bytes() int64 {
	var n int64
	for _, m := range w.all() {
		n += m.Bytes()
	}
	return n
}

// Alone walks the batch through layer index where nothing is exchanged.
func (w *Weights) Alone(index int, b *Batch) {
	began := time.Now()
	for _, p := range b.Program(w.Experts != nil, false) {
		start := time.Now()
		w.Compute(p, index, b)
		b.Spent[p] += time.Since(start)
	}
	b.Compute += time.Since(began)
}

// Compute runs a compute phase of layer index on the batch.
func (w *Weights) Compute(p Phase, index int, b *Batch) {
	switch p {
	case NormAttention:
		b.normOwned(w.AttnNorm)
	case NormFFN:
		if b.Place.Mapping == topology.Gather {
			b.addOwned(w.PostAttnNorm)
		}
		b.normOwned(w.FFNNorm)
	case NormRows:
		b.normRounded(w.FFNNorm, [2]topology.Range{{Lo: 0, Hi: b.T}})
	case ProjectQKV:
		w.projectQKV(b)
	case Attend:
		if w.Latent != nil {
			w.Latent.attend(index, b)
			return
		}
		w.attend(index, b)
		if b.rounded.on {
			b.roundAttention()
		}
	case ProjectHeads:
		w.Latent.projectHeads(b)
	case ProjectValues:
		w.Latent.projectValues(b)
	case ProjectOut:
		w.projectOut(b)
	case FeedForward:
		w.feedForward(b)
	case ProjectDown:
		w.projectDown(b)
	case Finish:
		w.finish(b)
	}
}

// projectQKV: QKV[t] = Wqkv . RMSNorm(X[t]) for the rows and columns this rank owes.
func (w *Weights) projectQKV(b *Batch) {
	if !b.rounded.own {
		b.norm(w.AttnNorm)
	}
	if w.Latent != nil {
		w.Latent.projectDown(b)
		return
	}
	d, me := b.Dims, b.Place.Slices[b.Rank]
	all := topology.Range{Lo: 0, Hi: b.T}
	if b.Place.Mapping == topology.Gather {
		cols := b.ownParts(b.Rank)
		b.project(w.Q, within(w.QBias, me.Q), all, topology.Range{Lo: 0, Hi: me.Q.Len()}, cols[0].Lo)
		b.project(w.K, within(w.KBias, me.K), all, topology.Range{Lo: 0, Hi: me.K.Len()}, cols[1].Lo)
		b.project(w.V, within(w.VBias, me.V), all, topology.Range{Lo: 0, Hi: me.V.Len()}, cols[2].Lo)
		b.projectAll(all)
		return
	}
	q, k, v := 0, d.qCols(), d.qCols()+d.kCols()
	own, prefill := b.decodeRows(b.Rank), topology.Range{Lo: b.decode, Hi: b.T}
	b.project(w.Q, w.QBias, own, topology.Range{Lo: 0, Hi: d.qCols()}, q)
	b.project(w.K, w.KBias, own, topology.Range{Lo: 0, Hi: d.kCols()}, k)
	b.project(w.V, w.VBias, own, topology.Range{Lo: 0, Hi: d.kCols()}, v)
	b.projectAll(own)
	h := b.headParts(me.KVHeads)
	rows := func(r topology.Range, base, limit int) topology.Range { return panelRows(r.Lo-base, r.Hi-base, limit) }
	b.project(w.Q, w.QBias, prefill, rows(h[0], q, d.qCols()), q)
	b.project(w.K, w.KBias, prefill, rows(h[1], k, d.kCols()), k)
	b.project(w.V, w.VBias, prefill, rows(h[2], v, d.kCols()), v)
	b.projectAll(prefill)
}

// within is the part of a whole bias that belongs to rows r.
func within(bias []float32, r topology.Range) []float32 {
	if bias == nil {
		return nil
	}
	return bias[r.Lo:r.Hi]
}

// panelRows widens a run of output rows to whole kernel panels: the extra rows
// are right, only not needed.
func panelRows(lo, hi, limit int) topology.Range {
	if lo == hi {
		return topology.Range{}
	}
	return topology.Range{Lo: lo / tensor.RowGrain * tensor.RowGrain, Hi: min((hi+tensor.RowGrain-1)/tensor.RowGrain*tensor.RowGrain, limit)}
}

// project queues rows out of m for tokens t into QKV, output row r at column
// col+r. bias, unless nil, has an element for every row of m.
func (b *Batch) project(m *tensor.Weight, bias []float32, t, out topology.Range, col int) {
	if m == nil || t.Len() == 0 || out.Len() == 0 {
		return
	}
	ld := b.qkvWidth()
	b.products = append(b.products, tensor.Product{Y: b.QKV[t.Lo*ld+col:], LdY: ld, W: m, R0: out.Lo, R1: out.Hi})
	b.biases = append(b.biases, bias)
}

// projectAll multiplies what was queued, for tokens t, in one parallel region.
func (b *Batch) projectAll(t topology.Range) {
	if t.Len() > 0 {
		b.multiplyNorm(t)
	}
	for i, p := range b.products {
		addBias(p.Y, p.LdY, t.Len(), b.biases[i], topology.Range{Lo: p.R0, Hi: p.R1})
	}
	b.products, b.biases = b.products[:0], b.biases[:0]
}

// multiplyNorm multiplies what was queued by the norms of rows t.
func (b *Batch) multiplyNorm(t topology.Range) {
	h := b.Dims.Hidden
	if b.rounded.own {
		ld := recordFloats(h)
		b.Pool.MatMulRounded(b.products, floatBytes(b.rounded.norms[t.Lo*ld:]), 4*ld, t.Len())
		return
	}
	b.Pool.MatMulMany(b.products, b.Norm[t.Lo*h:], h, t.Len())
}

// qkvWidth is the distance between rows of QKV.
func (b *Batch) qkvWidth() int {
	if d := b.Dims; d.Latent.Rank > 0 {
		return d.Heads * d.row()
	}
	return stride(b.Dims.qCols() + 2*b.Dims.kCols())
}

func (b *Batch) norm(weight []float32) {
	b.normWeight = weight
	b.each(b.T, b.normRow)
}

// each runs a small task for every row: alone where waking the others costs more.
func (b *Batch) each(rows int, f func(int)) {
	if rows < aloneRows {
		for i := range rows {
			f(i)
		}
		return
	}
	b.Pool.Run(rows, f)
}

// aloneRows are the rows from which element-wise work is shared: a row takes about
// a microsecond, and so does waking the other threads.
const aloneRows = 4

func addBias(y []float32, ld, n int, bias []float32, r topology.Range) {
	if bias == nil {
		return
	}
	for t := range n {
		tensor.Add(y[t*ld+r.Lo:t*ld+r.Hi], bias[r.Lo:r.Hi])
	}
}

// headNorm is RMSNorm of one head in place, where the model has it.
func headNorm(head, weight []float32, eps float32) {
	if weight != nil {
		tensor.RMSNorm(head, head, weight, eps)
	}
}

// projectOut: Y = Wo . Attn for the rows this rank owes. With Reduce the
// residual of those token rows is added at once: they travel as whole rows.
func (w *Weights) projectOut(b *Batch) {
	d := b.Dims
	if b.Place.Mapping == topology.Gather {
		me := b.Place.Slices[b.Rank].Out
		if w.O != nil {
			b.multiplyAttention(b.Y[me.Lo:], w.O, topology.Range{Lo: 0, Hi: b.T})
			addBias(b.Y, d.Hidden, b.T, w.OBias, me)
		}
		return
	}
	for _, t := range [2]topology.Range{b.decodeRows(b.Rank), b.rows[b.Rank]} {
		if t.Len() == 0 {
			continue
		}
		y := b.Y[t.Lo*d.Hidden : t.Hi*d.Hidden]
		b.multiplyAttention(y, w.O, t)
		addBias(y, d.Hidden, t.Len(), w.OBias, topology.Range{Lo: 0, Hi: d.Hidden})
		if w.PostAttnNorm != nil {
			for row := 0; row < len(y); row += d.Hidden {
				tensor.RMSNorm(y[row:row+d.Hidden], y[row:row+d.Hidden], w.PostAttnNorm, d.NormEps)
			}
		}
		tensor.Add(b.X[t.Lo*d.Hidden:t.Hi*d.Hidden], y)
	}
}

// multiplyAttention multiplies the attention outputs of rows t by w into y.
func (b *Batch) multiplyAttention(y []float32, w *tensor.Weight, t topology.Range) {
	ld := b.Dims.attnCols()
	if b.rounded.on {
		b.multiplyMid(y, w, ld, t)
		return
	}
	b.Pool.MatMul(y, b.Dims.Hidden, w, b.Attn[t.Lo*ld:], ld, t.Len())
}

// feedForward: gate and up of this rank's FFN columns, act(gate)*up, and with
// Reduce the tree nodes of down over this rank's units. Or the experts' part of it.
func (w *Weights) feedForward(b *Batch) {
	d, me := b.Dims, b.Place.Slices[b.Rank]
	all := topology.Range{Lo: 0, Hi: b.T}
	if !b.rounded.own {
		if b.Place.Mapping == topology.Gather {
			b.addResidual(w.PostAttnNorm, all)
		}
		b.norm(w.FFNNorm)
	}
	if w.Experts != nil {
		w.Experts.mixUp(b)
		return
	}
	if w.Gate != nil {
		rows := me.FFN.Len()
		ld := d.gateWidth()
		b.products = append(b.products, tensor.Product{Y: b.Gate[me.FFN.Lo:], LdY: ld, W: w.Gate, R1: rows},
			tensor.Product{Y: b.Up[me.FFN.Lo:], LdY: ld, W: w.Up, R1: rows})
		b.multiplyNorm(all)
		b.products = b.products[:0]
		addBias(b.Gate, ld, b.T, w.GateBias, me.FFN)
		addBias(b.Up, ld, b.T, w.UpBias, me.FFN)
		b.each(b.T, b.activateRow)
		if b.rounded.on && b.Place.Mapping == topology.Gather {
			b.roundMid(b.Gate, ld, d.FFN, all, me.FFN)
		}
	}
	if b.Place.Mapping == topology.Reduce && len(b.Place.Slices) > 1 {
		b.partial = b.partialBuffers(b.Rank)
		if w.Down != nil {
			b.Pool.MatMulPartial(b.partial, w.Down, b.Gate[me.FFN.Lo:], d.gateWidth(), b.T)
		}
	}
}

// projectDown: Y = Wdown . Gate for the rows this rank owes (all when alone).
func (w *Weights) projectDown(b *Batch) {
	if w.Experts != nil {
		w.Experts.mixDown(b)
		return
	}
	if w.Down == nil {
		return
	}
	lo := 0
	if b.Place.Mapping == topology.Gather {
		lo = b.Place.Slices[b.Rank].Down.Lo
	}
	if b.rounded.on {
		b.multiplyMid(b.Y[lo:], w.Down, b.Dims.FFN, topology.Range{Lo: 0, Hi: b.T})
		return
	}
	b.Pool.MatMul(b.Y[lo:], b.Dims.Hidden, w.Down, b.Gate, b.Dims.gateWidth(), b.T)
}

func (w *Weights) finish(b *Batch) {
	h, rows := b.Dims.Hidden, [2]topology.Range{b.summed}
	if b.rounded.own && b.HasPrefill() {
		rows = b.owned(b.Rank)
	}
	for _, r := range rows {
		addBias(b.Y[r.Lo*h:], h, r.Len(), w.DownBias, topology.Range{Lo: 0, Hi: h})
		b.addResidual(w.PostFFNNorm, r)
	}
}

// addResidual is X += Y, or X += RMSNorm(Y, norm), for some rows.
func (b *Batch) addResidual(norm []float32, rows topology.Range) {
	b.postNorm, b.firstRow = norm, rows.Lo
	b.each(rows.Len(), b.residualRow)
}
