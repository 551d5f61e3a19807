package layer

import (
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// Latent attention, absorbed (DeepSeek-V2, arXiv 2405.04434): projections, the attention
// phase, and what each exchange moves. Its cache is internal/engine/kvcache/latent.go's and internal/engine/tensor/latent.go's.

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

// The exchanges that latent attention has in place of exchangeQKV.
var (
	// exchangeLatents: columns of latents, whole rows to everybody.
	exchangeLatents = allGather("exchange-latents", func(b *Batch, rank int, yield func(Tile)) {
		yield(Tile{Latents, b.all(), b.Place.Slices[rank].K})
	})

	// exchangeLatentRows: the latents of the prompt rows that a rank owns, to everybody.
	exchangeLatentRows = allGather("exchange-latent-rows", func(b *Batch, rank int, yield func(Tile)) {
		yield(Tile{Latents, b.rows[rank], topology.Range{Lo: 0, Hi: b.Dims.downCols()}})
	})

	// exchangeQueries: absorbed queries of the heads of `from` for the attention of `to`.
	exchangeQueries = allToAll("exchange-queries", func(b *Batch, from, to int, yield func(Tile)) {
		b.headTiles(QKV, b.Dims.row(), from, to, yield)
	})

	// exchangeMeans: means of latents that `from` found for the heads of `to`.
	exchangeMeans = allToAll("exchange-means", func(b *Batch, from, to int, yield func(Tile)) {
		b.headTiles(LatentMeans, b.Dims.Latent.Rank, to, from, yield)
	})
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
		b.Pool.MatMulHeads(b.QKV[p.rows.Lo*b.Dims.qkvWidth()+at*d.row():], b.Dims.qkvWidth(), d.row(), l.KUp[heads.Lo:heads.Hi],
			a.heads[p.rows.Lo*d.qCols()+at*d.HeadDim:], d.qCols(), d.HeadDim, p.rows.Len())
		b.each(p.rows.Len(), a.turn)
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

// latentAttention is the attention phase where all query heads share one row a
// token. A rank that computes any attention of a segment, or owns it, writes its rows;
// then tasks of some heads and some queries pass over the cache.
type latentAttention struct {
	b       *Processor
	w       *Latent
	index   int
	writes  []attendTask
	reads   []attendTask
	long    longRows     // of reads in decode
	watches []attendTask // head: the unit of a prompt

	write, begin, read, fold, watch func(i int)
}

const (
	// latentQueries is the number of prompt tokens of one task.
	latentQueries = 64
	// latentHeads is the number of query heads of one decode task: enough to share
	// the widening of a block, few enough to occupy threads with one sequence.
	latentHeads = 32
)

func (a *latentAttention) init(b *Processor) {
	a.b = b
	a.write = func(i int) { a.put(a.writes[i]) }
	a.long.init()
	a.begin = func(i int) {
		r := a.long.rows[i]
		query, part, out := a.rows(r.task)
		r.begin(b, a.index, 0, part, query[:b.Dims.qkvWidth()], a.heads(r.task), out)
	}
	a.read = func(i int) {
		if i < len(a.long.pieces) {
			a.long.attend(i)
			return
		}
		a.attend(a.reads[i-len(a.long.pieces)])
	}
	a.fold = func(i int) { a.long.rows[i].fold() }
	a.watch = func(i int) { a.show(a.watches[i]) }
}

func (l *Latent) attend(index int, b *Processor) {
	a := &b.latentAttention
	a.w, a.index = l, index
	for round, more := 0, true; more; round++ {
		more = a.plan(round)
		b.Pool.Run(len(a.writes), a.write)
		b.Pool.Run(a.long.n, a.begin)
		a.long.cut(b.Pool.Threads())
		b.Pool.Run(len(a.long.pieces)+len(a.reads), a.read)
		b.Pool.Run(a.long.n, a.fold)
		b.Pool.Run(len(a.watches), a.watch)
	}
}

// plan lists the tasks of a round: all rows in the first, but those of a decode segment that
// are put, viewed and observed one by one (Cache.Together) in a round each. It says whether
// another one follows.
func (a *latentAttention) plan(round int) (more bool) {
	b, d := a.b, a.b.Dims
	a.writes, a.reads, a.watches = a.writes[:0], a.reads[:0], a.watches[:0]
	a.long.reset()
	defer a.share()
	for i := range b.batch.Segments {
		s := &b.batch.Segments[i]
		if s.Cache == nil || round >= s.N {
			continue
		}
		units := b.batch.heads(s, b.batch.Rank)
		if !s.Prefill {
			first, n := 0, s.N
			if together, _ := s.Cache.Together(a.index, s.Start, s.N); !together {
				first, n, more = round, 1, more || round+1 < s.N
			} else if round > 0 {
				continue
			}
			a.writes = append(a.writes, attendTask{s, 0, first, n})
			for head := 0; head < d.Heads && units.Len() > 0; head += latentHeads {
				a.reads = append(a.reads, attendTask{s, head, first, n})
			}
			a.watches = append(a.watches, attendTask{s, 0, first, n})
			continue
		}
		if round > 0 {
			continue
		}
		a.writes = cutPuts(a.writes, attendTask{s, 0, 0, s.N}, a.index)
		for unit := units.Lo; unit < units.Hi; unit++ {
			a.reads = cutReads(a.reads, attendTask{s, unit, 0, s.N}, latentQueries)
			a.watches = append(a.watches, attendTask{s, unit, 0, s.N})
		}
	}
	return more
}

// put norms the latents of a segment, rotates its keys and writes both.
func (a *latentAttention) put(t attendTask) {
	b, d := a.b, a.b.Dims
	half := d.Latent.Rope / 2
	for r := range t.n {
		row := t.s.First + t.first + r
		line := b.latent.down[row*d.downCols()+d.Latent.QueryRank:][:d.row()]
		latent := line[:d.Latent.Rank]
		tensor.RMSNorm(latent, latent, a.w.KVNorm, d.LatentEps)
		tensor.RopeRotateHalf(line[d.Latent.Rank:], b.Cos[0][row*half:(row+1)*half], b.Sin[0][row*half:(row+1)*half])
	}
	ld := d.downCols()
	rows := b.latent.down[(t.s.First+t.first)*ld+d.Latent.QueryRank:]
	t.s.Cache.WriteRun(a.index, 0, t.s.Start+t.first, t.n, rows, ld, rows, ld)
}

// share takes out of the tasks those that are too long for one thread.
func (a *latentAttention) share() {
	all, threads := 0, a.b.Pool.Threads()
	for _, t := range a.reads {
		all += a.long.blocks(a.index, 0, t)
	}
	a.reads = slices.DeleteFunc(a.reads, func(t attendTask) bool {
		cut := t.n == 1 && worthCutting(a.long.blocks(a.index, 0, t), all, threads)
		if cut {
			a.long.add(t)
		}
		return cut
	})
}

// rows are the queries of a task's rows, of all heads and of its own, and where its
// attention goes.
func (a *latentAttention) rows(t attendTask) (query, part, out []float32) {
	d, row, head := a.b.Dims, t.s.First+t.first, t.head
	if t.s.Prefill {
		head *= d.group()
	}
	query = a.b.QKV[row*a.b.Dims.qkvWidth():]
	return query, query[head*d.row():], a.b.latent.out[row*d.Heads*d.Latent.Rank+head*d.Latent.Rank:]
}

// heads is the number of query heads of a decode task.
func (a *latentAttention) heads(t attendTask) int { return min(latentHeads, a.b.Dims.Heads-t.head) }

func (a *latentAttention) attend(t attendTask) {
	b, d := a.b, a.b.Dims
	sc := scratch.Get().(*tensor.AttnScratch)
	defer scratch.Put(sc)
	ldq, ldo, score, pos := b.Dims.qkvWidth(), d.Heads*d.Latent.Rank, d.score(), t.s.Start+t.first
	q, part, out := a.rows(t)
	if t.s.Prefill {
		tensor.AttendCausal(out, ldo, part, ldq, t.n, pos, 0, d.group(), score, b.Layout, t.s.Cache.Blocks(a.index, 0), sc)
		return
	}
	heads := a.heads(t)
	if _, causal := t.s.Cache.Together(a.index, pos, t.n); causal {
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

// show lets the policy see the queries: of a prompt unit by unit, in decode all heads.
func (a *latentAttention) show(t attendTask) {
	ld, d := a.b.Dims.qkvWidth(), a.b.Dims
	t.s.Cache.Observe(a.index, t.head, t.s.Start+t.first, t.n, a.b.QKV[(t.s.First+t.first)*ld+t.head*d.group()*d.row():], ld)
}
