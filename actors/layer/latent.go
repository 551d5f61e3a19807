package layer

import (
	"shoal/tensor"
	"shoal/topology"
)

// Latent are the slices of a layer's latent attention (model.Latent) beside the
// output projection. Gather: Down by the rows of Slice.K, the others of the heads
// of the slice. Reduce: whole.
type Latent struct {
	Down   *tensor.Weight   // (query rank + rank + rope, Hidden), queries first; nil when empty
	QNorm  []float32        // (query rank), or nil
	KVNorm []float32        // (rank)
	QUp    *tensor.Weight   // (heads*(nope+rope), query rank), or (.., Hidden) without one; nil when empty
	KUp    []*tensor.Weight // (rank, nope) of each head: transposed
	VUp    []*tensor.Weight // (value, rank) of each head
}

func (l *Latent) matrices() []*tensor.Weight {
	if l == nil {
		return nil
	}
	return append(append([]*tensor.Weight{l.Down, l.QUp}, l.KUp...), l.VUp...)
}

// The stages that latent attention has in place of projectQKV, exchangeQKV and attend.
var (
	// projectLatents: the latents of queries and cache, and the shared key: this rank's
	// rows of the matrix, all tokens.
	projectLatents = compute("project-latents", Projections, func(w *Weights, b *Processor) {
		if l := w.Latent; l.Down != nil {
			b.Pool.MatMul(b.latent.down[b.Place.Slices[b.Rank].K.Lo:], b.Dims.downCols(), l.Down, b.Norm, b.Dims.Hidden, b.T)
		}
	})

	// projectOwnLatents: the same with the whole matrix, for the tokens that this rank owns.
	projectOwnLatents = compute("project-own-latents", Projections, func(w *Weights, b *Processor) {
		d := b.Dims
		for _, t := range b.owned(b.Rank) {
			b.Pool.MatMul(b.latent.down[t.Lo*d.downCols():], d.downCols(), w.Latent.Down, b.Norm[t.Lo*d.Hidden:], d.Hidden, t.Len())
		}
	})

	// exchangeLatents: columns of latents, whole rows to everybody.
	exchangeLatents = allGather("exchange-latents", func(b *Batch, rank int, yield func(Tile)) {
		yield(Tile{Latents, b.all(), b.Place.Slices[rank].K})
	})

	// exchangeLatentRows: the latents of the prompt rows that a rank owns, to everybody.
	exchangeLatentRows = allGather("exchange-latent-rows", func(b *Batch, rank int, yield func(Tile)) {
		yield(Tile{Latents, b.rows[rank], topology.Range{Lo: 0, Hi: b.Dims.downCols()}})
	})

	// projectHeads: queries of heads from their latents, absorbed and rotated.
	projectHeads = compute("project-heads", Projections, func(w *Weights, b *Processor) { w.Latent.projectHeads(b) })

	// exchangeQueries: absorbed queries of the heads of `from` for the attention of `to`.
	exchangeQueries = allToAll("exchange-queries", func(b *Batch, from, to int, yield func(Tile)) {
		b.headTiles(QKV, b.Dims.row(), from, to, yield)
	})

	// attendLatents: cache write, attention of this rank's heads over latents.
	attendLatents = compute("attend-latents", Attention, func(w *Weights, b *Processor) { w.Latent.attend(w.Index, b) })

	// exchangeMeans: means of latents that `from` found for the heads of `to`.
	exchangeMeans = allToAll("exchange-means", func(b *Batch, from, to int, yield func(Tile)) {
		b.headTiles(LatentMeans, b.Dims.Latent.Rank, to, from, yield)
	})

	// projectValues: values of heads from their means of latents.
	projectValues = compute("project-values", Projections, func(w *Weights, b *Processor) { w.Latent.projectValues(b) })
)

// latentBatch are the activations of latent attention. Batch.QKV has the absorbed
// queries, (T, Heads*(rank+rope)).
type latentBatch struct {
	down  []float32 // (T, query rank + rank + rope)
	heads []float32 // (T, Heads*(nope+rope)) queries before they are absorbed
	out   []float32 // (T, Heads*rank) attention's mean of latents

	part latentPart // in hand, for turn
	turn func(i int)
	norm func(i int)
	w    *Latent
}

// latentPart is a run of rows and of head units that a rank projects.
type latentPart struct{ rows, units topology.Range }

func (b *Processor) initLatent(maxRows int) {
	d, l := b.Dims, &b.latent
	if d.Latent.Rank == 0 {
		return
	}
	l.down, l.heads, l.out = make([]float32, maxRows*d.downCols()), make([]float32, maxRows*d.qCols()), make([]float32, maxRows*d.Heads*d.Latent.Rank)
	l.norm = func(i int) {
		q := l.down[(l.part.rows.Lo+i)*d.downCols():][:d.Latent.QueryRank]
		tensor.RMSNorm(q, q, l.w.QNorm, d.LatentEps)
	}
	l.turn = func(i int) {
		t, row, half := l.part.rows.Lo+i, d.row(), d.Latent.Rope/2
		cos, sin := b.Cos[0][t*half:(t+1)*half], b.Sin[0][t*half:(t+1)*half]
		for h := l.part.units.Lo * d.group(); h < l.part.units.Hi*d.group(); h++ {
			r := b.QKV[(t*d.Heads+h)*row+d.Latent.Rank:][:d.Latent.Rope]
			copy(r, l.heads[(t*d.Heads+h)*d.HeadDim+d.Latent.Nope:])
			tensor.RopeRotateHalf(r, cos, sin)
		}
	}
}

// row is the width of a cached row, and of an absorbed query.
func (d Dims) row() int { return d.Latent.Rank + d.Latent.Rope }

func (d Dims) downCols() int { return d.Latent.QueryRank + d.row() }

// latentParts are what this rank projects of queries and values, and the first head
// of its matrices: with Gather its heads for everybody, with Reduce all heads of its
// decode rows and its heads of the prompts.
func (b *Batch) latentParts() (parts [2]latentPart, first int) {
	me := b.Place.Slices[b.Rank].KVHeads
	if b.Place.Mapping == topology.Gather {
		return [2]latentPart{{topology.Range{Lo: 0, Hi: b.T}, me}}, me.Lo * b.Dims.group()
	}
	return [2]latentPart{{b.decodeRows(b.Rank), topology.Range{Lo: 0, Hi: b.Dims.KVHeads}},
		{topology.Range{Lo: b.decode, Hi: b.T}, me}}, 0
}

func (l *Latent) projectHeads(b *Processor) {
	d, a := b.Dims, &b.latent
	a.w = l
	parts, first := b.latentParts()
	for _, p := range parts {
		if p.rows.Len() == 0 || p.units.Len() == 0 {
			continue
		}
		a.part = p
		x, ldx := b.Norm, d.Hidden
		if d.Latent.QueryRank > 0 {
			x, ldx = a.down, d.downCols()
			b.each(p.rows.Len(), a.norm)
		}
		heads := topology.Range{Lo: p.units.Lo*d.group() - first, Hi: p.units.Hi*d.group() - first}
		own := panelRows(heads.Lo*d.HeadDim, heads.Hi*d.HeadDim, l.QUp.Rows)
		b.Pool.MatMulRows(a.heads[p.rows.Lo*d.qCols()+first*d.HeadDim:], d.qCols(), l.QUp, own.Lo, own.Hi, x[p.rows.Lo*ldx:], ldx, p.rows.Len())
		at := first + heads.Lo
		b.Pool.MatMulHeads(b.QKV[p.rows.Lo*b.qkvWidth()+at*d.row():], b.qkvWidth(), d.row(), l.KUp[heads.Lo:heads.Hi],
			a.heads[p.rows.Lo*d.qCols()+at*d.HeadDim:], d.qCols(), d.HeadDim, p.rows.Len())
		b.each(p.rows.Len(), a.turn)
	}
}

func (l *Latent) projectValues(b *Processor) {
	d := b.Dims
	parts, first := b.latentParts()
	for _, p := range parts {
		if p.rows.Len() == 0 || p.units.Len() == 0 {
			continue
		}
		lo, hi := p.units.Lo*d.group(), p.units.Hi*d.group()
		b.Pool.MatMulHeads(b.Attn[p.rows.Lo*d.attnCols()+lo*d.Latent.Value:], d.attnCols(), d.Latent.Value, l.VUp[lo-first:hi-first],
			b.latent.out[(p.rows.Lo*d.Heads+lo)*d.Latent.Rank:], d.Heads*d.Latent.Rank, d.Latent.Rank, p.rows.Len())
	}
}

// headTiles: of an activation whose heads are width wide, what the rank that has heads and the
// one that attends to segments with them share.
func (b *Batch) headTiles(of Activation, width, has, attends int, yield func(Tile)) {
	d := b.Dims
	w := d.group() * width
	for i := range b.Segments {
		s := &b.Segments[i]
		h := b.heads(s, attends).Intersect(b.Place.Slices[has].KVHeads)
		yield(Tile{of, s.rows(), topology.Range{Lo: h.Lo * w, Hi: h.Hi * w}})
	}
}

// latentLocal reports whether all attention is computed by the ranks of its heads.
func (b *Batch) latentLocal() bool {
	for i := range b.Segments {
		for r := range b.Place.Slices {
			if h := b.heads(&b.Segments[i], r); h.Len() > 0 && h != b.Place.Slices[r].KVHeads {
				return false
			}
		}
	}
	return true
}
