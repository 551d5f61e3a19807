package layer

import (
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// Latent attention, absorbed (DeepSeek-V2, arXiv 2405.04434): projections, the attention phase and
// the exchanges. Its cache is in internal/engine/kvcache/latent.go and its kernels are in
// internal/engine/tensor/latent.go.

// Latent are the slices of a layer's latent attention (model.Latent), without the output
// projection. With mapping Gather, Down has the rows of Slice.K and the other matrices have the
// slice's heads. With Reduce they are whole.
type Latent struct {
	Down   *tensor.Weight   // (Latent.Columns, Hidden); nil if this rank has no rows
	QNorm  []float32        // (query rank), or nil
	KVNorm []float32        // (rank)
	QUp    *tensor.Weight   // (heads*(nope+rope), query rank), or (.., Hidden) without a query rank; nil if this rank has no rows
	KUp    []*tensor.Weight // per head: (rank, nope), transposed
	VUp    []*tensor.Weight // per head: (value, rank)
	Index  *Indexer         // chooses the tokens that a query reads; nil: all
}

func (l *Latent) matrices() []*tensor.Weight {
	if l == nil {
		return nil
	}
	all := slices.Concat([]*tensor.Weight{l.Down, l.QUp}, l.KUp, l.VUp)
	if l.Index != nil {
		all = append(all, l.Index.Q)
	}
	return all
}

// The exchanges that replace exchangeQKV in latent attention.
var (
	// exchangeLatents gathers the columns of latents: every rank gets whole rows.
	exchangeLatents = allGather("exchange-latents", func(b *Batch, rank int, yield func(Tile)) {
		yield(Tile{Latents, b.all(), b.Place.Slices[rank].K})
	})

	// exchangeLatentRows gathers the latents of each rank's prompt rows.
	exchangeLatentRows = allGather("exchange-latent-rows", func(b *Batch, rank int, yield func(Tile)) {
		yield(Tile{Latents, b.rows[rank], topology.Range{Lo: 0, Hi: b.Dims.downCols()}})
	})

	// exchangeQueries sends the absorbed queries of the heads of `from` to `to`, which attends.
	exchangeQueries = allToAll("exchange-queries", func(b *Batch, from, to int, yield func(Tile)) {
		b.headTiles(QKV, b.Dims.row(), from, to, yield)
	})

	// exchangeMeans sends the attention outputs in latent space that `from` computed for the heads
	// of `to`.
	exchangeMeans = allToAll("exchange-means", func(b *Batch, from, to int, yield func(Tile)) {
		b.headTiles(LatentMeans, b.Dims.Latent.Rank, to, from, yield)
	})
)

// latentBatch is the activations of latent attention. Processor.QKV has the absorbed queries,
// (T, Heads*(rank+rope)).
type latentBatch struct {
	down  []float32 // (T, query rank + rank + rope)
	heads []float32 // (T, Heads*(nope+rope)) queries before absorption
	out   []float32 // (T, Heads*rank) attention outputs: weighted means of latents

	part   latentPart // the part that norm and rotate work on
	rotate func(i int)
	norm   func(i int)
	w      *Latent
}

// latentPart is the rows and the units of heads that a rank projects.
type latentPart struct{ rows, units topology.Range }

func (b *Processor) initLatent(maxRows int) {
	d, l := b.Dims, &b.latent
	if d.Latent.Rank == 0 {
		return
	}
	l.down, l.heads = make([]float32, maxRows*d.downCols()), make([]float32, maxRows*d.qCols())
	l.out = make([]float32, maxRows*d.Heads*d.Latent.Rank)
	l.norm = func(i int) {
		q := l.down[(l.part.rows.Lo+i)*d.downCols():][:d.Latent.QueryRank]
		tensor.RMSNorm(q, q, l.w.QNorm, d.LatentEps)
	}
	l.rotate = func(i int) {
		t, row, half := l.part.rows.Lo+i, d.row(), d.Latent.Rope/2
		cos, sin := b.Cos[0][t*half:(t+1)*half], b.Sin[0][t*half:(t+1)*half]
		for h := l.part.units.Lo * d.group(); h < l.part.units.Hi*d.group(); h++ {
			r := b.QKV[(t*d.Heads+h)*row+d.Latent.Rank:][:d.Latent.Rope]
			copy(r, l.heads[(t*d.Heads+h)*d.HeadDim+d.Latent.Nope:])
			tensor.RopeRotateHalf(r, cos, sin)
		}
	}
}

// row returns the width of a cached row and of an absorbed query.
func (d *Dims) row() int { return d.Latent.Row() }

func (d *Dims) downCols() int { return d.Latent.Columns() }

// latentParts returns the parts of queries and values that this rank projects, and the number of
// its matrices' first head. With Gather a rank projects its heads for all rows. With Reduce it
// projects all heads of its own decode rows, and its heads of the prompt rows.
func (b *Batch) latentParts() (parts [2]latentPart, first int) {
	me := b.Place.Slices[b.Rank].KVHeads
	if b.Place.Mapping == topology.Gather {
		return [2]latentPart{{topology.Range{Lo: 0, Hi: b.T}, me}}, me.Lo * b.Dims.group()
	}
	return [2]latentPart{{b.decodeRows(b.Rank), topology.Range{Lo: 0, Hi: b.Dims.KVHeads}},
		{topology.Range{Lo: b.decode, Hi: b.T}, me}}, 0
}

func (l *Latent) projectDown(b *Processor) {
	if l.Down != nil {
		b.Pool.MatMul(b.latent.down[b.batch.Place.Slices[b.batch.Rank].K.Lo:], b.Dims.downCols(), l.Down, b.Norm, b.Dims.Hidden, b.batch.T)
	}
}

func (l *Latent) projectOwnDown(b *Processor) {
	d := b.Dims
	for _, t := range b.batch.owned(b.batch.Rank) {
		b.Pool.MatMul(b.latent.down[t.Lo*d.downCols():], d.downCols(), l.Down, b.Norm[t.Lo*d.Hidden:], d.Hidden, t.Len())
	}
}

func (l *Latent) projectHeads(b *Processor) {
	d, a := b.Dims, &b.latent
	a.w = l
	parts, first := b.batch.latentParts()
	for _, p := range parts {
		if a.part = p; l.Index != nil {
			l.Index.project(b, p.rows)
		}
		if p.rows.Len() == 0 || p.units.Len() == 0 {
			continue
		}
		x, ldx := b.Norm, d.Hidden
		if d.Latent.QueryRank > 0 {
			if x, ldx = a.down, d.downCols(); l.Index == nil {
				b.each(p.rows.Len(), a.norm)
			}
		}
		heads := topology.Range{Lo: p.units.Lo*d.group() - first, Hi: p.units.Hi*d.group() - first}
		own := panelRows(heads.Lo*d.HeadDim, heads.Hi*d.HeadDim, l.QUp.Rows)
		b.Pool.MatMulRows(a.heads[p.rows.Lo*d.qCols()+first*d.HeadDim:], d.qCols(), l.QUp, own.Lo, own.Hi, x[p.rows.Lo*ldx:], ldx, p.rows.Len())
		at := first + heads.Lo
		b.Pool.MatMulHeads(b.QKV[p.rows.Lo*b.Dims.qkvWidth()+at*d.row():], b.Dims.qkvWidth(), d.row(), l.KUp[heads.Lo:heads.Hi],
			a.heads[p.rows.Lo*d.qCols()+at*d.HeadDim:], d.qCols(), d.HeadDim, p.rows.Len())
		b.each(p.rows.Len(), a.rotate)
	}
}

func (l *Latent) projectValues(b *Processor) {
	d := b.Dims
	parts, first := b.batch.latentParts()
	for _, p := range parts {
		if p.rows.Len() == 0 || p.units.Len() == 0 {
			continue
		}
		lo, hi := p.units.Lo*d.group(), p.units.Hi*d.group()
		b.Pool.MatMulHeads(b.Attn[p.rows.Lo*d.attnCols()+lo*d.Latent.Value:], d.attnCols(), d.Latent.Value, l.VUp[lo-first:hi-first],
			b.latent.out[(p.rows.Lo*d.Heads+lo)*d.Latent.Rank:], d.Heads*d.Latent.Rank, d.Latent.Rank, p.rows.Len())
	}
}

// headTiles yields the tiles of an activation with the given width per head: for each segment, the
// heads whose matrices rank `has` holds and to which rank `attends` attends.
func (b *Batch) headTiles(of Activation, width, has, attends int, yield func(Tile)) {
	d := b.Dims
	w := d.group() * width
	for i := range b.Segments {
		s := &b.Segments[i]
		h := b.heads(s, attends).Intersect(b.Place.Slices[has].KVHeads)
		yield(Tile{of, s.rows(), topology.Range{Lo: h.Lo * w, Hi: h.Hi * w}})
	}
}

// latentLocal reports whether each head's attention is computed by the rank that has its matrices.
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

// latentAttention is the attention phase where all query heads share one cached row per token. A
// rank that owns a segment, or attends to any of it, writes the segment's rows. Then tasks, each of
// a few heads and queries, pass over the cache.
type latentAttention struct {
	b            *Processor
	w            *Latent
	index        int
	writes       []attendTask
	reads        []attendTask
	long         longRows     // the decode tasks that are split by runs of slots
	observations []attendTask // calls of Observe; in prefill, head is the unit

	write, begin, read, fold, observe func(i int)

	chosen chosen
}

const (
	// latentQueries is the number of prompt tokens per task.
	latentQueries = 64
	// latentHeads is the number of query heads per decode task. More heads share the cost of
	// converting a block to float32; fewer keep all threads busy with one sequence.
	latentHeads = 32
)

func (a *latentAttention) init(b *Processor) {
	a.b = b
	a.write = func(i int) { a.put(a.writes[i]) }
	a.long.init()
	a.begin = func(i int) {
		r := a.long.rows[i]
		query, part, out := a.rows(r.task)
		r.begin(b, b.Dims.score(), a.index, 0, part, query[:b.Dims.qkvWidth()], a.heads(r.task), out)
	}
	a.read = func(i int) {
		if i < len(a.long.pieces) {
			a.long.attend(i)
			return
		}
		a.attend(a.reads[i-len(a.long.pieces)])
	}
	a.fold = func(i int) { a.long.rows[i].fold() }
	a.observe = func(i int) { a.observeQueries(a.observations[i]) }
}

func (l *Latent) attend(index int, b *Processor) {
	a := &b.latentAttention
	a.w, a.index = l, index
	for round, more := 0, true; more; round++ {
		more = a.plan(round)
		b.Pool.Run(len(a.writes), a.write)
		if l.Index != nil {
			a.choose()
		}
		b.Pool.Run(a.long.n, a.begin)
		a.long.split(b.Pool.Threads())
		b.Pool.Run(len(a.long.pieces)+len(a.reads), a.read)
		b.Pool.Run(a.long.n, a.fold)
		b.Pool.Run(len(a.observations), a.observe)
	}
}

// plan lists the tasks of a round and reports whether another round follows. Rows of decode segments
// that must be written, viewed and observed one at a time (Cache.BatchedDecode) take one round each.
// The first round has all other rows.
func (a *latentAttention) plan(round int) (more bool) {
	b, d := a.b, a.b.Dims
	a.writes, a.reads, a.observations = a.writes[:0], a.reads[:0], a.observations[:0]
	a.long.reset()
	defer a.splitLong()
	for i := range b.batch.Segments {
		s := &b.batch.Segments[i]
		if s.Cache == nil || round >= s.N {
			continue
		}
		units := b.batch.heads(s, b.batch.Rank)
		if !s.Prefill {
			first, n := 0, s.N
			if together, _ := s.Cache.BatchedDecode(a.index, s.Start, s.N); !together {
				first, n, more = round, 1, more || round+1 < s.N
			} else if round > 0 {
				continue
			}
			a.writes = append(a.writes, attendTask{s: s, head: 0, first: first, n: n, cache: a.index})
			for head := 0; head < d.Heads && units.Len() > 0; head += latentHeads {
				t := attendTask{s: s, head: head, first: first, n: n, cache: a.index}
				if rows := a.rowsPerTask(t); rows < n {
					a.reads = splitReads(a.reads, t, rows)
				} else {
					a.reads = append(a.reads, t)
				}
			}
			a.observations = append(a.observations, attendTask{s: s, head: 0, first: first, n: n, cache: a.index})
			continue
		}
		if round > 0 {
			continue
		}
		a.writes = splitWrites(a.writes, attendTask{s: s, head: 0, first: 0, n: s.N, cache: a.index})
		for unit := units.Lo; unit < units.Hi; unit++ {
			a.reads = splitReads(a.reads, attendTask{s: s, head: unit, first: 0, n: s.N, cache: a.index}, latentQueries)
			a.observations = append(a.observations, attendTask{s: s, head: unit, first: 0, n: s.N, cache: a.index})
		}
	}
	return more
}

// rowsPerTask returns the number of decode rows of a segment per task.
func (a *latentAttention) rowsPerTask(t attendTask) int {
	if a.w.Index != nil {
		return t.n
	}
	return rowsPerTask(t, a.b.Layout.TokensTogether(a.heads(t)), decodeRows)
}

// put norms the latents of a segment's rows, rotates their keys and writes both to the cache.
func (a *latentAttention) put(t attendTask) {
	b, d := a.b, a.b.Dims
	half := d.Latent.Rope / 2
	for r := range t.n {
		row := t.s.First + t.first + r
		line := b.latent.down[row*d.downCols()+d.Latent.QueryRank:][:d.row()]
		latent := line[:d.Latent.Rank]
		tensor.RMSNorm(latent, latent, a.w.KVNorm, d.LatentEps)
		tensor.RopeRotateHalf(line[d.Latent.Rank:][:d.Latent.Rope], b.Cos[0][row*half:(row+1)*half], b.Sin[0][row*half:(row+1)*half])
		if a.w.Index != nil {
			a.w.Index.key(b, row, line[d.Latent.Rank+d.Latent.Rope:])
		}
	}
	ld := d.downCols()
	rows := b.latent.down[(t.s.First+t.first)*ld+d.Latent.QueryRank:]
	t.s.Cache.WriteRun(a.index, 0, t.s.Start+t.first, t.n, rows, ld, rows, ld)
}

// splitLong moves the tasks that are too long for one thread from reads to long.
func (a *latentAttention) splitLong() {
	all, threads := 0, a.b.Pool.Threads()
	if a.w.Index != nil || threads == 1 || !mayBeLong(a.b.batch.Segments) {
		return
	}
	for _, t := range a.reads {
		all += a.long.blocks(t)
	}
	a.reads = slices.DeleteFunc(a.reads, func(t attendTask) bool {
		cut := t.n == 1 && worthSplitting(a.long.blocks(t), all, threads)
		if cut {
			a.long.add(t)
		}
		return cut
	})
}

// rows returns the queries of a task's rows (of all heads, and of the task's heads) and the place
// of their attention output.
func (a *latentAttention) rows(t attendTask) (query, part, out []float32) {
	d, row, head := a.b.Dims, t.s.First+t.first, t.head
	if t.s.Prefill {
		head *= d.group()
	}
	query = a.b.QKV[row*a.b.Dims.qkvWidth():]
	return query, query[head*d.row():], a.b.latent.out[row*d.Heads*d.Latent.Rank+head*d.Latent.Rank:]
}

// heads returns the number of query heads of a decode task.
func (a *latentAttention) heads(t attendTask) int { return min(latentHeads, a.b.Dims.Heads-t.head) }

func (a *latentAttention) attend(t attendTask) {
	b, d := a.b, a.b.Dims
	sc := scratch.Get().(*tensor.AttnScratch)
	defer scratch.Put(sc)
	ldq, ldo, score, pos := b.Dims.qkvWidth(), d.Heads*d.Latent.Rank, d.score(), t.s.Start+t.first
	q, part, out := a.rows(t)
	if a.w.Index != nil {
		a.attendChosen(t, part, out, sc)
		return
	}
	if t.s.Prefill {
		tensor.AttendCausal(out, ldo, part, ldq, t.n, pos, 0, d.group(), score, b.Layout, t.s.Cache.Blocks(a.index, 0), sc)
		return
	}
	heads := a.heads(t)
	if _, causal := t.s.Cache.BatchedDecode(a.index, pos, t.n); causal {
		last := t.n - 1
		blocks, slots, _ := t.s.Cache.View(a.index, 0, pos+last, q[last*ldq:][:ldq], sc)
		tensor.AttendCausal(out, ldo, part, ldq, t.n, slots-t.n, 0, heads, score, b.Layout, blocks, sc)
		return
	}
	for r := range t.n {
		blocks, slots, valid := t.s.Cache.View(a.index, 0, pos+r, q[r*ldq:][:ldq], sc)
		tensor.Attend(out[r*ldo:], part[r*ldq:], heads, score, b.Layout, blocks, slots, valid, sc)
	}
}

// observeQueries passes the queries to the cache policy: of a prompt those of one unit, in decode
// those of all heads.
func (a *latentAttention) observeQueries(t attendTask) {
	ld, d := a.b.Dims.qkvWidth(), a.b.Dims
	t.s.Cache.Observe(a.index, t.head, t.s.Start+t.first, t.n, a.b.QKV[(t.s.First+t.first)*ld+t.head*d.group()*d.row():], ld)
}
