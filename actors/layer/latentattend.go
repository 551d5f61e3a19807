package layer

import (
	"slices"

	"shoal/tensor"
)

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
		r.begin(b, a.index, 0, part, query[:b.qkvWidth()], a.heads(r.task), out)
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
	for i := range b.Segments {
		s := &b.Segments[i]
		if s.Cache == nil || round >= s.N {
			continue
		}
		units := b.heads(s, b.Rank)
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
		a.writes = append(a.writes, attendTask{s, 0, 0, s.N})
		for unit := units.Lo; unit < units.Hi; unit++ {
			for first := 0; first < s.N; first += latentQueries {
				a.reads = append(a.reads, attendTask{s, unit, first, min(latentQueries, s.N-first)})
			}
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
	t.s.Cache.Put(a.index, 0, t.s.Start+t.first, t.n, rows, ld, rows, ld)
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
	query = a.b.QKV[row*a.b.qkvWidth():]
	return query, query[head*d.row():], a.b.latent.out[row*d.Heads*d.Latent.Rank+head*d.Latent.Rank:]
}

// heads is the number of query heads of a decode task.
func (a *latentAttention) heads(t attendTask) int { return min(latentHeads, a.b.Dims.Heads-t.head) }

func (a *latentAttention) attend(t attendTask) {
	b, d := a.b, a.b.Dims
	sc := scratch.Get().(*tensor.AttnScratch)
	defer scratch.Put(sc)
	ldq, ldo, scale, pos := b.qkvWidth(), d.Heads*d.Latent.Rank, d.scale(), t.s.Start+t.first
	q, part, out := a.rows(t)
	if t.s.Prefill {
		tensor.AttendCausal(out, ldo, part, ldq, t.n, pos, 0, d.group(), scale, b.Layout, t.s.Cache.Blocks(a.index, 0), sc)
		return
	}
	heads := a.heads(t)
	if _, causal := t.s.Cache.Together(a.index, pos, t.n); causal {
		last := t.n - 1
		blocks, slots, _ := t.s.Cache.View(a.index, 0, pos+last, q[last*ldq:][:ldq], sc)
		tensor.AttendCausal(out, ldo, part, ldq, t.n, slots-t.n, 0, heads, scale, b.Layout, blocks, sc)
		return
	}
	for r := range t.n {
		blocks, slots, valid := t.s.Cache.View(a.index, 0, pos+r, q[r*ldq:][:ldq], sc)
		tensor.Attend(out[r*ldo:], part[r*ldq:], heads, scale, b.Layout, blocks, slots, valid, sc)
	}
}

// show lets the policy see the queries: of a prompt unit by unit, in decode all heads.
func (a *latentAttention) show(t attendTask) {
	ld, d := a.b.qkvWidth(), a.b.Dims
	t.s.Cache.Observe(a.index, t.head, t.s.Start+t.first, t.n, a.b.QKV[(t.s.First+t.first)*ld+t.head*d.group()*d.row():], ld)
}
