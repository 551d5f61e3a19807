package layer

import (
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// SwiftKV (arXiv 2410.03960) computes the keys and values of all later layers from the input of the
// first of them. That is a pass of its own before the later layers, scheduled as a layer is. Rows
// whose output is not needed are dropped after it and skip the later layers. A step without remaining
// rows ends there.

// SwiftKV is the weights of SwiftKV's pass.
type SwiftKV struct {
	Norm   []float32 // (Hidden)
	Caches []KV      // one per cache of the later layers, in order
	First  int       // number of the first of these caches
}

// KV computes the keys and values of one cache. Its matrices are sliced as those of [Weights].
type KV struct {
	K, V         *tensor.Weight
	KBias, VBias []float32 // for whole rows, or nil
	KNorm        []float32 // (HeadDim), or nil
}

var (
	// exchangeKV sends the columns of keys and values that `from` computed and the attention of
	// `to` needs.
	exchangeKV = allToAll("exchange-kv", func(b *Batch, from, to int, yield func(Tile)) {
		have := b.ownParts(from)
		for i := range b.Segments {
			s := &b.Segments[i]
			need := b.headParts(b.heads(s, to))
			for c := range b.caches {
				for part := 1; part < 3; part++ {
					cols := b.kvCols(need[part].Intersect(have[part]))
					yield(Tile{LaterKV, s.rows(), topology.Range{Lo: b.kvColumn(c) + cols.Lo, Hi: b.kvColumn(c) + cols.Hi}})
				}
			}
		}
	})

	// exchangeKeptRows gathers the remaining rows of X on every rank.
	exchangeKeptRows = allGather("exchange-staying", func(b *Batch, rank int, yield func(Tile)) {
		whole := topology.Range{Lo: 0, Hi: b.Dims.Hidden}
		yield(Tile{Residual, b.decodeRows(rank), whole})
		for i := range b.Segments {
			if s := &b.Segments[i]; s.Prefill {
				yield(Tile{Residual, s.keptRows().Intersect(b.rows[rank]), whole})
			}
		}
	})
)

// swiftKV returns the schedule of the pass before the later layers.
func (c conditions) swiftKV() []Stage {
	own := c.mapping == topology.Reduce && !c.alone
	return list(
		either(c.owned, OpNormOwnedInput, OpNormInput),
		exchangeNorm.when(c.owned && c.prefill), // otherwise each rank projects only its own rows
		either(own, OpProjectOwnKV, OpProjectKV),
		exchangeKV.when(!own && !c.local),
		OpPutKV,
		exchangeKeptRows.when(c.owned && c.dropsRows),
	)
}

func (s *Segment) keptRows() topology.Range {
	return topology.Range{Lo: s.First + s.Dropped, Hi: s.First + s.N}
}

// dropAfter reports whether rows are dropped after a layer. In a model whose later layers read the caches
// of earlier ones (Gemma 4 E2B and E4B), prompt rows are needed there only for their logits.
func (b *Batch) dropAfter(k Kind) bool { return k.SwiftKVPass || k.EndsPrompts && b.step.dropsRows }

// dropsRows reports whether the step drops rows before the later layers.
func (b *Batch) dropsRows() bool {
	for i := range b.Segments {
		if b.Segments[i].Dropped > 0 {
			return true
		}
	}
	return false
}

// dropRows drops rows from the batch. Decode rows come first and keep their positions.
func (b *Batch) dropRows() {
	stay, rows, to := b.Segments[:0], b.kept[:0], 0
	for _, s := range b.Segments {
		r := s.keptRows()
		if r.Len() == 0 {
			continue
		}
		s.First, s.N, s.Start, s.Dropped = to, r.Len(), s.Start+s.Dropped, 0
		to += s.N
		stay, rows = append(stay, s), append(rows, r)
	}
	b.Segments, b.kept, b.T = stay, rows, to
	b.rows = b.rowRanges()
	b.findAdapted()
	b.classify()
	b.Backend.Compact(rows)
}

func (b *Processor) Compact(rows []topology.Range) {
	h, inputs, to := b.Dims.Hidden, b.Dims.PerLayer*b.Dims.Layers, 0
	for _, r := range rows {
		copy(b.X[to*h:], b.X[r.Lo*h:r.Hi*h])
		copy(b.perLayer.inputs[to*inputs:], b.perLayer.inputs[r.Lo*inputs:r.Hi*inputs])
		for i, half := range b.pairsOf {
			copy(b.Cos[i][to*half:], b.Cos[i][r.Lo*half:r.Hi*half])
			copy(b.Sin[i][to*half:], b.Sin[i][r.Lo*half:r.Hi*half])
		}
		if b.grown != nil {
			copy(b.grown[to:], b.grown[r.Lo:r.Hi])
		}
		to += r.Len()
	}
	if b.batch.step.quantized {
		b.growQuantized()
	}
}

// computed returns the caches that the pass computes, and the number of the first.
func (b *Batch) computed(w *SwiftKV) (caches []KV, first int) {
	of := b.Section.Caches
	if of.Len() == 0 {
		return w.Caches, w.First
	}
	return w.Caches[of.Lo-w.First : of.Hi-w.First], of.Lo
}

// growKV allocates the keys and values of a step.
func (b *Processor) growKV() { b.KV = growF(b.KV, b.batch.T*b.batch.kvWidth()) }

func (b *Batch) kvWidth() int           { return stride(b.caches * 2 * b.Dims.kCols()) }
func (b *Batch) kvColumn(cache int) int { return cache * 2 * b.Dims.kCols() }

// kvCols converts columns of QKV to columns of one cache's keys and values.
func (b *Batch) kvCols(c topology.Range) topology.Range {
	return topology.Range{Lo: c.Lo - b.Dims.qCols(), Hi: c.Hi - b.Dims.qCols()}
}

// queueKV queues rows out of m for tokens t into KV. Output row r goes to column col+r of the given
// cache.
func (b *Processor) queueKV(cache int, m *tensor.Weight, bias []float32, t, out topology.Range, col int) {
	if m == nil || t.Len() == 0 || out.Len() == 0 {
		return
	}
	ld := b.batch.kvWidth()
	b.products = append(b.products, tensor.Product{Y: b.KV[t.Lo*ld+b.batch.kvColumn(cache)+col:], LdY: ld, W: m, R0: out.Lo, R1: out.Hi})
	b.biases = append(b.biases, bias)
}

// kvTask is the rows of a segment for one head of one cache.
type kvTask struct {
	s           *Segment
	cache, head int
}

func (a *attention) putKV(w *SwiftKV) {
	b := a.b
	a.computed, a.firstComputed = b.batch.computed(w)
	a.kv = a.kv[:0]
	for i := range b.batch.Segments {
		s := &b.batch.Segments[i]
		h := b.batch.heads(s, b.batch.Rank)
		for c := range a.computed {
			for head := h.Lo; head < h.Hi; head++ {
				a.kv = append(a.kv, kvTask{s, c, head})
			}
		}
	}
	b.Pool.Run(len(a.kv), a.rotateKV)
}

func (a *attention) initKV(b *Processor) {
	a.rotateKV = func(i int) {
		t, d, ld := a.kv[i], b.Dims, b.batch.kvWidth()
		half, hd := d.HeadDim/2, d.HeadDim
		for row := t.s.First; row < t.s.First+t.s.N; row++ {
			k := b.KV[row*ld+b.batch.kvColumn(t.cache)+t.head*hd:][:hd]
			headNorm(k, a.computed[t.cache].KNorm, d.NormEps)
			tensor.RopeRotateHalf(k, b.Cos[0][row*half:(row+1)*half], b.Sin[0][row*half:(row+1)*half])
		}
		if t.s.Prefill {
			rows := attendTask{s: t.s, head: t.head, n: t.s.N, cache: a.firstComputed + t.cache, unit: t.head}
			a.putRows(rows, b.KV[b.batch.kvColumn(t.cache):], ld)
		}
	}
}

// putRows writes a task's rows of keys and values, with all heads side by side, into its cache.
func (a *attention) putRows(t attendTask, kv []float32, ld int) {
	d := a.b.Dims
	k := (t.s.First+t.first)*ld + t.head*d.HeadDim
	t.s.Cache.WriteRun(t.cache, t.unit, t.s.Start+t.first, t.n, kv[k:], ld, kv[k+d.kCols():], ld)
}

func (w *Weights) projectKV(b *Processor) {
	b.growKV()
	me, cols := b.batch.Place.Slices[b.batch.Rank], b.batch.ownParts(b.batch.Rank)
	caches, _ := b.batch.computed(w.SwiftKV)
	for i := range caches {
		c := &caches[i]
		b.queueKV(i, c.K, within(c.KBias, me.K), b.batch.all(), topology.Range{Lo: 0, Hi: me.K.Len()}, b.batch.kvCols(cols[1]).Lo)
		b.queueKV(i, c.V, within(c.VBias, me.V), b.batch.all(), topology.Range{Lo: 0, Hi: me.V.Len()}, b.batch.kvCols(cols[2]).Lo)
		b.projectAll(b.batch.all())
	}
}

func (w *Weights) projectOwnKV(b *Processor) {
	b.growKV()
	n := b.Dims.kCols()
	caches, _ := b.batch.computed(w.SwiftKV)
	h := b.batch.headParts(b.batch.Place.Slices[b.batch.Rank].KVHeads)
	heads := panelRows(h[1].Lo-b.Dims.qCols(), h[1].Hi-b.Dims.qCols(), n)
	for _, part := range [...]struct{ rows, out topology.Range }{
		{b.batch.decodeRows(b.batch.Rank), topology.Range{Lo: 0, Hi: n}}, {topology.Range{Lo: b.batch.decode, Hi: b.batch.T}, heads}} {
		for i := range caches {
			c := &caches[i]
			b.queueKV(i, c.K, c.KBias, part.rows, part.out, 0)
			b.queueKV(i, c.V, c.VBias, part.rows, part.out, n)
			b.projectAll(part.rows)
		}
	}
}
