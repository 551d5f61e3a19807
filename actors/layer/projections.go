package layer

import (
	"github.com/shoal-llm/shoal/actors/layer/lowrank"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// Attention's projections, its norm and its residual sum.

var (
	// exchangeQKV sends the columns that `from` computed to `to`, whose attention needs them.
	exchangeQKV = exchangeParts("exchange-qkv", 4)

	// exchangeQ sends only queries.
	exchangeQ = exchangeParts("exchange-q", 1)

	// exchangeQK sends queries and keys.
	exchangeQK = exchangeParts("exchange-qk", 2)

	// exchangeAttention gathers the attention outputs on every rank.
	exchangeAttention = allGather("exchange-attention", func(b *Batch, rank int, yield func(Tile)) {
		for i := range b.Segments {
			s := &b.Segments[i]
			h := b.heads(s, rank)
			if b.Dims.Latent.Rank > 0 { // each rank projects its own heads, which another rank may have attended
				h = b.Place.Slices[rank].KVHeads
			}
			of, cols := b.attended(h)
			yield(Tile{of, s.rows(), cols})
		}
	})

	// exchangeHeads sends the outputs of the heads of `from` for the prompt rows that `to` projects.
	exchangeHeads = allToAll("exchange-heads", func(b *Batch, from, to int, yield func(Tile)) {
		for i := range b.Segments {
			if s := &b.Segments[i]; s.Prefill {
				of, cols := b.attended(b.heads(s, from))
				yield(Tile{of, s.rows().Intersect(b.rows[to]), cols})
			}
		}
	})

	// exchangeOut gathers the columns of Y: every rank gets whole rows.
	exchangeOut = allGather("exchange-out", func(b *Batch, rank int, yield func(Tile)) {
		yield(Tile{Sum, b.all(), b.Place.Slices[rank].Out})
	})

	// exchangeOutRows sends the columns of Y that `from` projected for the rows of `to`.
	exchangeOutRows = allToAll("exchange-out-rows", func(b *Batch, from, to int, yield func(Tile)) {
		b.ownedTiles(to, Sum, b.Place.Slices[from].Out, yield)
	})

	// exchangeResidual gathers each rank's own rows of X.
	exchangeResidual = allGather("exchange-residual", func(b *Batch, rank int, yield func(Tile)) {
		b.ownedTiles(rank, Residual, topology.Range{Lo: 0, Hi: b.Dims.Hidden}, yield)
	})
)

// exchangeParts exchanges the first `parts` of queries, keys, values and output gates.
func exchangeParts(name string, parts int) *Exchange {
	return allToAll(name, func(b *Batch, from, to int, yield func(Tile)) {
		have := b.ownParts(from)
		for i := range b.Segments {
			s := &b.Segments[i]
			need := b.headParts(b.heads(s, to))
			for p := range parts {
				yield(Tile{QKV, s.rows(), need[p].Intersect(have[p])})
			}
		}
	})
}

func (w *Weights) projectQKV(b *Processor) {
	me, cols := b.batch.Place.Slices[b.batch.Rank], b.batch.ownParts(b.batch.Rank)
	b.project(lowrank.Q, w.Q, within(w.QBias, me.Q), b.batch.all(), topology.Range{Lo: 0, Hi: me.Q.Len()}, cols[0].Lo)
	b.project(lowrank.K, w.K, within(w.KBias, me.K), b.batch.all(), topology.Range{Lo: 0, Hi: me.K.Len()}, cols[1].Lo)
	b.project(lowrank.V, w.V, within(w.VBias, me.V), b.batch.all(), topology.Range{Lo: 0, Hi: me.V.Len()}, cols[2].Lo)
	b.project(lowrank.QGate, w.QGate, nil, b.batch.all(), topology.Range{Lo: 0, Hi: me.Q.Len()}, cols[3].Lo)
	b.projectAll(b.batch.all())
}

func (w *Weights) projectOwnQKV(b *Processor) {
	d := b.Dims
	q, k, v, gate := 0, d.qCols(), d.qCols()+d.kCols(), d.qCols()+2*d.kCols()
	own, prompts := b.batch.decodeRows(b.batch.Rank), topology.Range{Lo: b.batch.decode, Hi: b.batch.T}
	b.project(lowrank.Q, w.Q, w.QBias, own, topology.Range{Lo: 0, Hi: d.qCols()}, q)
	b.project(lowrank.K, w.K, w.KBias, own, topology.Range{Lo: 0, Hi: d.kCols()}, k)
	b.project(lowrank.V, w.V, w.VBias, own, topology.Range{Lo: 0, Hi: d.kCols()}, v)
	b.project(lowrank.QGate, w.QGate, nil, own, topology.Range{Lo: 0, Hi: d.qCols()}, gate)
	b.projectAll(own)
	h := b.batch.headParts(b.batch.Place.Slices[b.batch.Rank].KVHeads)
	rows := func(r topology.Range, base, limit int) topology.Range { return panelRows(r.Lo-base, r.Hi-base, limit) }
	b.project(lowrank.Q, w.Q, w.QBias, prompts, rows(h[0], q, d.qCols()), q)
	b.project(lowrank.K, w.K, w.KBias, prompts, rows(h[1], k, d.kCols()), k)
	b.project(lowrank.V, w.V, w.VBias, prompts, rows(h[2], v, d.kCols()), v)
	b.project(lowrank.QGate, w.QGate, nil, prompts, rows(h[3], gate, d.qCols()), gate)
	b.projectAll(prompts)
}

func (w *Weights) projectOut(b *Processor) {
	if w.O != nil {
		me := b.batch.Place.Slices[b.batch.Rank].Out
		b.multiplyAttention(b.Y[me.Lo:], w.O, b.batch.all())
		addBias(b.Y, b.Dims.Hidden, b.batch.T, w.OBias, me)
		b.adapt(lowrank.O, b.batch.all(), topology.Range{Lo: 0, Hi: me.Len()}, b.Y[me.Lo:], b.Dims.Hidden)
		b.adaptOut()
	}
}

func (w *Weights) projectOwnOut(b *Processor) {
	h := b.Dims.Hidden
	for _, t := range b.batch.owned(b.batch.Rank) {
		if t.Len() > 0 {
			b.multiplyAttention(b.Y[t.Lo*h:], w.O, t)
			addBias(b.Y[t.Lo*h:], h, t.Len(), w.OBias, topology.Range{Lo: 0, Hi: h})
			b.adapt(lowrank.O, t, topology.Range{Lo: 0, Hi: h}, b.Y, h)
		}
	}
	b.adaptOut()
}

// within returns the elements of a whole bias that belong to rows r.
func within(bias []float32, r topology.Range) []float32 {
	if bias == nil {
		return nil
	}
	return bias[r.Lo:r.Hi]
}

// panelRows widens a range of output rows to whole kernel panels. The results of the extra rows are
// correct and not used.
func panelRows(lo, hi, limit int) topology.Range {
	if lo == hi {
		return topology.Range{}
	}
	return topology.Range{Lo: lo / tensor.RowGrain * tensor.RowGrain, Hi: min((hi+tensor.RowGrain-1)/tensor.RowGrain*tensor.RowGrain, limit)}
}

// project queues rows out of m for tokens t into QKV. Output row r goes to column col+r. bias, if
// not nil, has an element for every row of m, which is matrix `of` of adapters.
func (b *Processor) project(of lowrank.Matrix, m *tensor.Weight, bias []float32, t, out topology.Range, col int) {
	if m == nil || t.Len() == 0 || out.Len() == 0 {
		return
	}
	ld := b.Dims.qkvWidth()
	b.products = append(b.products, tensor.Product{Y: b.QKV[t.Lo*ld+col:], LdY: ld, W: m, R0: out.Lo, R1: out.Hi})
	b.biases = append(b.biases, bias)
	b.adapt(of, t, out, b.QKV[col:], ld)
}

// projectAll multiplies the queued matrices, for tokens t, in one parallel region.
func (b *Processor) projectAll(t topology.Range) {
	if t.Len() > 0 {
		b.multiplyNorm(t)
	}
	for i, p := range b.products {
		addBias(p.Y, p.LdY, t.Len(), b.biases[i], topology.Range{Lo: p.R0, Hi: p.R1})
	}
	b.products, b.biases = b.products[:0], b.biases[:0]
	b.lowrank.Run(b.Pool, b.Norm, b.Dims.Hidden)
}

// multiplyNorm multiplies the queued matrices by the norms of rows t.
func (b *Processor) multiplyNorm(t topology.Range) {
	h := b.Dims.Hidden
	if b.batch.step.owned {
		ld := quantizedFloats(h)
		b.Pool.MatMulQuantized(b.products, tensor.FloatBytes(b.quantized.norm[t.Lo*ld:]), 4*ld, t.Len())
		return
	}
	b.Pool.MatMulMany(b.products, b.Norm[t.Lo*h:], h, t.Len())
}

// multiplyAttention multiplies the attention outputs of rows t by w into y.
func (b *Processor) multiplyAttention(y []float32, w *tensor.Weight, t topology.Range) {
	ld := b.Dims.attnCols()
	if b.batch.step.quantized {
		b.multiplyQuantized(y, w, ld, t)
		return
	}
	b.Pool.MatMul(y, b.Dims.Hidden, w, b.Attn[t.Lo*ld:], ld, t.Len())
}

// attended returns the activation and the columns of the attention outputs of heads h, quantized or
// not.
func (b *Batch) attended(h topology.Range) (of Activation, cols topology.Range) {
	cols = b.attentionCols(h)
	if b.step.quantized {
		return QuantizedAttention, quantizedCols(cols)
	}
	return Attended, cols
}

// attentionCols returns the columns of the attention outputs of heads h.
func (b *Batch) attentionCols(h topology.Range) topology.Range {
	w := b.Dims.group() * b.Dims.valueDim()
	return topology.Range{Lo: h.Lo * w, Hi: h.Hi * w}
}

// qkvWidth returns the row stride of QKV.
func (d *Dims) qkvWidth() int {
	if d.Latent.Rank > 0 {
		return d.Heads * d.row()
	}
	return stride(d.gateAt() + d.gateCols())
}

// gateAt returns the first column of the output gates in QKV, and gateCols their number.
func (d *Dims) gateAt() int { return d.qCols() + 2*d.kCols() }

func (d *Dims) gateCols() int {
	if d.OutputGate {
		return d.qCols()
	}
	return 0
}

// qkvParts returns the column ranges of QKV that hold the given query, key and value rows, and the
// output gates of the queries.
func (b *Batch) qkvParts(q, k, v topology.Range) [4]topology.Range {
	d := b.Dims
	var gates topology.Range // without gates: an empty range at column gateAt, which is within or at the end of a row
	if d.gateCols() > 0 {
		gates = q
	}
	return [4]topology.Range{q,
		{Lo: d.qCols() + k.Lo, Hi: d.qCols() + k.Hi},
		{Lo: d.qCols() + d.kCols() + v.Lo, Hi: d.qCols() + d.kCols() + v.Hi},
		{Lo: d.gateAt() + gates.Lo, Hi: d.gateAt() + gates.Hi}}
}

// headParts returns the columns of QKV that the attention of KV heads h needs.
func (b *Batch) headParts(h topology.Range) [4]topology.Range {
	d := b.Dims
	q := topology.Range{Lo: h.Lo * d.group() * d.HeadDim, Hi: h.Hi * d.group() * d.HeadDim}
	k := topology.Range{Lo: h.Lo * d.HeadDim, Hi: h.Hi * d.HeadDim}
	return b.qkvParts(q, k, k)
}

// ownParts returns the columns of QKV that a rank computes with mapping Gather.
func (b *Batch) ownParts(rank int) [4]topology.Range {
	s := b.Place.Slices[rank]
	return b.qkvParts(s.Q, s.K, s.V)
}

// projectionsLocal reports whether every rank computes the given parts (queries, keys, values,
// output gates) that its attention needs. All ranks get the same result, because it depends only on the plan and the
// placement.
func (b *Batch) projectionsLocal(parts ...int) bool {
	if b.Dims.Latent.Rank > 0 {
		return b.latentLocal()
	}
	for i := range b.Segments {
		s := &b.Segments[i]
		for r := range b.Place.Slices {
			need, have := b.headParts(b.heads(s, r)), b.ownParts(r)
			for _, p := range parts {
				if need[p].Intersect(have[p]).Len() != need[p].Len() {
					return false
				}
			}
		}
	}
	return true
}

// headNorm applies RMSNorm to one head in place, if the model has such a norm.
func headNorm(head, weight []float32, eps float32) {
	if weight != nil {
		tensor.RMSNorm(head, head, weight, eps)
	}
}
