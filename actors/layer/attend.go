package layer

import (
	"sync"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

var scratch = sync.Pool{New: func() any { return new(tensor.AttnScratch) }}

// attention is the attention phase of a batch. Its tasks are (segment, KV head) pairs. Where that
// leaves threads idle, tasks of one row are split by runs of slots. Prefill tasks, and decode
// tasks of many rows, are split by tokens. Tasks and their closures are reused in every step.
type attention struct {
	b       *Processor
	w       *Weights
	index   int          // the layer's first cache
	caches  int          // number of its caches
	score   tensor.Score // of all its heads
	entries []attendTask // decode: one per segment and head
	split   []*longRow   // per entry: nil, or the row whose attention is split by runs of slots; empty: none is split
	reading []int        // per entry, then per block: blocks of the cache that it reads, see splitLong
	long    longRows
	blocks  []attendTask // prefill, and decode rows that are split into several tasks: one per segment and head
	runs    []*longRow   // per block: nil, or the row of a prompt whose attention is split by runs of slots; empty: none is split
	writes  []attendTask // parts of blocks: tasks that write keys and values
	reads   []attendTask // parts of blocks: tasks that compute attention of queries

	write, read, observe func(i int)

	computed      []KV // of the step, by SwiftKV's pass
	firstComputed int  // number of the first of these caches
	kv            []kvTask
	rotateKV      func(i int)
}

type attendTask struct {
	s              *Segment
	head, first, n int // KV head; first row and number of rows within the segment
	cache, unit    int // where the head is stored: its cache, and its head there

	long *longRow // of a part of blocks that is a row of a prompt: its attention is split by runs of slots
}

func (a *attention) init(b *Processor) {
	a.b = b
	a.initKV(b)
	a.write = func(i int) {
		if i >= len(a.entries) {
			a.writeBlock(a.writes[i-len(a.entries)])
			return
		}
		t := a.entries[i]
		a.rotateQueries(t)
		if a.w.computesKV() {
			a.rotateKeys(t)
			a.lend(t)
		}
		if r := splitRow(a.split, i); r != nil {
			if !a.w.SharesCache {
				a.put(t)
			}
			q, out := a.rows(t)
			r.begin(b, a.scoreOf(t), t.cache, t.unit, q, q[:b.Dims.group()*b.Dims.HeadDim], b.Dims.group(), out)
			return
		}
		a.decode(t, a.after(i))
	}
	a.long.init()
	a.read = func(i int) {
		if i < len(a.long.pieces) {
			a.long.attend(i)
			return
		}
		a.readBlock(a.reads[i-len(a.long.pieces)])
	}
	a.observe = func(i int) {
		if i >= len(a.entries) {
			t := a.blocks[i-len(a.entries)]
			if r := splitRow(a.runs, i-len(a.entries)); r != nil {
				r.fold()
				a.attended(t)
			}
			a.observeQueries(t)
			return
		}
		if r := splitRow(a.split, i); r != nil {
			r.fold()
			a.attended(a.entries[i])
			a.observeQueries(a.entries[i])
		}
	}
}

// attend rotates q and k, writes the cache and computes attention into Attn, for every segment and
// KV head of this rank.
func (w *Weights) attend(index int, b *Processor) {
	a := &b.attention
	a.w, a.index, a.caches, a.score = w, index, b.Dims.caches(), b.Dims.score()
	b.growLent(w)
	a.entries, a.blocks, a.writes, a.reads = a.entries[:0], a.blocks[:0], a.writes[:0], a.reads[:0]
	together := b.Layout.TokensTogether(b.Dims.group())
	for i := range b.batch.Segments {
		s := &b.batch.Segments[i]
		h := b.batch.heads(s, b.batch.Rank)
		selecting := max(decodeRows, min(s.N*h.Len()/(4*b.Pool.Threads()), maxDecodeRows)) // four tasks per thread
		for head := h.Lo; head < h.Hi; head++ {
			t := attendTask{s, head, 0, s.N, index + head%a.caches, head / a.caches, nil}
			if !s.Prefill {
				if rows := rowsPerTask(t, together, selecting); rows < s.N {
					a.blocks, a.writes, a.reads = append(a.blocks, t), append(a.writes, t), splitReads(a.reads, t, rows)
				} else {
					a.entries = append(a.entries, t)
				}
				continue
			}
			a.blocks = append(a.blocks, t)
		}
	}
	a.splitLong()
	a.splitPrompts()
	b.Pool.Run(len(a.entries)+len(a.writes), a.write)
	a.long.split(b.Pool.Threads())
	if n := len(a.long.pieces) + len(a.reads); n > 0 {
		b.Pool.Run(n, a.read)
		began := time.Now()
		b.Pool.Run(len(a.entries)+len(a.blocks), a.observe)
		b.batch.Observed += time.Since(began)
	}
}

// decodeRows and maxDecodeRows bound the number of rows per task if a segment's decode rows are split into
// tasks and each row selects its own slots. Tasks of more rows read the cache fewer times.
const (
	decodeRows    = 8
	maxDecodeRows = 32
)

// rowsPerTask returns the number of decode rows of t per task. together is the number of causal rows that
// share one pass over the cache, and selecting is the number of rows per task if each row selects its own
// slots. All rows are one task if they are few, or if the cache does not allow parallel views.
func rowsPerTask(t attendTask, together, selecting int) int {
	if t.s.N <= decodeRows || !t.s.Cache.ParallelViews(t.cache) {
		return t.s.N
	}
	switch all, causal := t.s.Cache.BatchedDecode(t.cache, t.s.Start, t.s.N); {
	case !all:
		return t.s.N
	case causal:
		return together
	}
	return selecting
}

// splitWrites appends the tasks that write a prompt's rows: one per block of the cache if several
// threads may write them in parallel, otherwise one.
func splitWrites(to []attendTask, t attendTask) []attendTask {
	if !t.s.Cache.ParallelWrite(t.cache, t.unit, t.s.Start, t.s.N) {
		return append(to, t)
	}
	for first := 0; first < t.s.N; {
		n := min(tensor.BlockSlots-(t.s.Start+first)%tensor.BlockSlots, t.s.N-first)
		part := t
		part.first, part.n = first, n
		to = append(to, part)
		first += n
	}
	return to
}

// splitReads appends the attention tasks of a segment's rows. Each task has the given number of queries,
// which share one pass over the cache. Later queries read more keys, and a thread gets consecutive tasks.
// So tasks alternate between the end and the beginning of the prompt, the longer one first.
func splitReads(to []attendTask, t attendTask, queries int) []attendTask {
	for lo, hi := 0, (t.s.N+queries-1)/queries-1; lo <= hi; lo, hi = lo+1, hi-1 {
		part := t
		part.first, part.n = hi*queries, min(queries, t.s.N-hi*queries)
		to = append(to, part)
		if lo < hi {
			part.first, part.n = lo*queries, queries
			to = append(to, part)
		}
	}
	return to
}

// splitLong marks the entries, and the rows of prompts, that are too long for one thread. All threads wait
// for splitLong, so it counts their blocks only if some may be that long.
func (a *attention) splitLong() {
	a.long.reset()
	a.split, a.runs = a.split[:0], a.runs[:0]
	threads := a.b.Pool.Threads()
	if threads == 1 || !mayBeLong(a.b.batch.Segments) {
		return
	}
	all := 0
	a.reading = a.reading[:0]
	for _, t := range a.entries {
		n := a.long.blocks(t)
		a.split, a.reading = append(a.split, nil), append(a.reading, n)
		all += n
	}
	for _, t := range a.blocks {
		n := a.promptRuns(t)
		a.runs, a.reading = append(a.runs, nil), append(a.reading, n)
		all += n
	}
	for i, t := range a.entries {
		if worthSplitting(a.reading[i], all, threads) && t.s.N == 1 {
			a.split[i] = a.long.add(t)
		}
	}
	for i, t := range a.blocks {
		if worthSplitting(a.reading[len(a.entries)+i], all, threads) {
			a.runs[i] = a.long.add(t)
		}
	}
}

// promptRuns returns the number of blocks that the only row of a prompt's task reads; 0: the row is not split.
func (a *attention) promptRuns(t attendTask) int {
	if !t.s.Prefill || t.s.N > 1 || !a.w.computesKV() || a.w.Window != 0 || a.b.Dims.NonCausal || a.b.Layout.Latent {
		return 0
	}
	return (t.s.Start + tensor.BlockSlots) / tensor.BlockSlots
}

// splitPrompts adds the tasks of prompts.
func (a *attention) splitPrompts() {
	for i, t := range a.blocks {
		if !t.s.Prefill {
			continue
		}
		if t.long = splitRow(a.runs, i); t.long != nil {
			a.writes = append(a.writes, t)
			continue
		}
		if a.w.computesKV() {
			a.writes = splitWrites(a.writes, t)
		}
		a.reads = splitReads(a.reads, t, a.b.Layout.TokensTogether(a.b.Dims.group()))
	}
}

// splitRow returns the row of task i if its attention is split, or nil. rows is empty if no row is split.
func splitRow(rows []*longRow, i int) *longRow {
	if len(rows) == 0 {
		return nil
	}
	return rows[i]
}

// rotateQueries applies the query norm, RoPE and the position's factor to the queries of a KV head's
// group.
func (a *attention) rotateQueries(t attendTask) {
	b, d := a.b, a.b.Dims
	g := d.group()
	a.rotate(t, t.head*g, g, a.w.QNorm)
	if !a.w.Grows {
		return
	}
	for row := t.s.First + t.first; row < t.s.First+t.first+t.n; row++ {
		tensor.Scale(b.QKV[row*d.qkvWidth()+t.head*g*d.HeadDim:][:g*d.HeadDim], b.grown[row])
	}
}

// rotateKeys applies the key norm and RoPE to the keys of a KV head, and the value norm to its
// values.
func (a *attention) rotateKeys(t attendTask) {
	a.values(t)
	a.rotate(t, a.b.Dims.Heads+t.head, 1, a.w.KNorm)
}

// rotate applies norm and RoPE to heads [first, first+heads) of the task's rows of QKV.
func (a *attention) rotate(t attendTask, first, heads int, norm []float32) {
	b, d := a.b, a.b.Dims
	ld, half, hd := b.Dims.qkvWidth(), d.HeadDim/2, d.HeadDim
	for row := t.s.First + t.first; row < t.s.First+t.first+t.n; row++ {
		cos, sin := b.Cos[a.w.Rope][row*half:(row+1)*half], b.Sin[a.w.Rope][row*half:(row+1)*half]
		by, of := float32(0), first // a norm over all heads: its factor, and its first head
		if b.squares != nil {
			by, of = b.allHeadsFactor(row, first)
		}
		for h := first; h < first+heads; h++ {
			x := b.QKV[row*ld+h*hd:][:hd]
			switch d.QKNormOf {
			case model.OfProjection:
				tensor.NormBy(x, x, norm[(h-of)*hd:][:hd], by)
			case model.OfHeads:
				headNorm(x, norm, d.NormEps)
			case model.OfOwnHeads:
				tensor.LayerNorm(x, x, norm[ownHead(d, h)*hd:][:hd], d.NormEps)
			}
			tensor.RopeRotateHalf(x, cos, sin)
			if d.QKNormOf == model.OfRotatedHeads {
				headNorm(x, norm, d.NormEps)
			}
		}
	}
}

// put writes the task's keys and values into the cache.
func (a *attention) put(t attendTask) {
	b := a.b
	if a.w.Borrows {
		ld := 2 * b.Dims.kCols()
		a.putRows(t, b.lent[a.w.Lent], ld)
		return
	}
	if a.w.KVComputed {
		a.putRows(t, b.KV[b.batch.kvColumn(a.index-a.firstComputed):], b.batch.kvWidth())
		return
	}
	a.putRows(t, b.QKV[b.Dims.qCols():], b.Dims.qkvWidth())
}

// after returns a block that the task after decode task i will read, or nil if the block is not
// known before its View. It prefetches the memory that this task will write. Without it every task
// begins with cache misses, because a thread runs consecutive tasks.
func (a *attention) after(i int) []byte {
	if i+1 < len(a.entries) {
		t := a.entries[i+1]
		if blocks := t.s.Cache.Blocks(t.cache, t.unit); len(blocks) > 0 {
			t.s.Cache.Prefetch(t.cache, t.unit, t.s.Start)
			if t.s.Cache.Read(t.cache, t.unit) == len(blocks) {
				return blocks[0]
			}
		}
	}
	return nil
}

// decode writes and attends to the decode rows of a segment. The results have the same bits as with
// one token per step.
func (a *attention) decode(t attendTask, after []byte) {
	together, causal := t.s.Cache.BatchedDecode(t.cache, t.s.Start, t.s.N)
	if !together {
		t.n = 1
	}
	for ; t.first < t.s.N; t.first += t.n {
		if !a.w.SharesCache || !together { // a repeated write rolls back the rows after it
			a.put(t)
		}
		a.attend(t, causal, after)
		a.observeQueries(t)
	}
}

// rows returns the queries of a task's rows and the place of their attention output.
func (a *attention) rows(t attendTask) (q, out []float32) {
	d, row := a.b.Dims, t.s.First+t.first
	at := t.head * d.group() * d.HeadDim
	return a.b.QKV[row*a.b.Dims.qkvWidth()+at:], a.b.Attn[row*d.qCols()+at:]
}

// writeBlock writes the rows of a task. Other tasks compute their attention.
func (a *attention) writeBlock(t attendTask) {
	if a.w.computesKV() {
		a.rotateKeys(t)
		if !t.s.Prefill {
			a.lend(t)
		}
	}
	if t.s.Prefill || !a.w.SharesCache {
		a.put(t)
	}
	if t.long != nil {
		a.rotateQueries(t)
		q, out := a.rows(t)
		t.long.beginPrompt(a.b, a.scoreOf(t), t.s.Cache.Blocks(t.cache, t.unit), q, out)
	}
}

// readBlock computes attention for a block of rows, whose queries are not rotated yet.
func (a *attention) readBlock(t attendTask) {
	a.rotateQueries(t)
	if !t.s.Prefill {
		_, causal := t.s.Cache.BatchedDecode(t.cache, t.s.Start, t.s.N)
		a.attend(t, causal, nil)
		return
	}
	d := a.b.Dims
	sc := scratch.Get().(*tensor.AttnScratch)
	defer scratch.Put(sc)
	q, out := a.rows(t)
	blocks := t.s.Cache.Blocks(t.cache, t.unit)
	if d.NonCausal { // the run is the whole text
		tensor.AttendAround(out, d.qCols(), q, d.qkvWidth(), t.n, t.first, t.s.N, a.w.Window, d.group(), a.scoreOf(t), a.b.Layout, blocks, sc)
	} else {
		tensor.AttendCausal(out, d.qCols(), q, d.qkvWidth(), t.n, t.s.Start+t.first, a.w.Window, d.group(), a.scoreOf(t), a.b.Layout, blocks, sc)
	}
	a.attended(t)
}

// scoreOf returns the score of a task's query heads.
func (a *attention) scoreOf(t attendTask) tensor.Score {
	g := a.b.Dims.group()
	return a.score.Heads(t.cache, t.head*g, g)
}

// attended multiplies a task's attention output by its gate, if the model has one, and quantizes it
// if the step is quantized.
func (a *attention) attended(t attendTask) {
	d, row := a.b.Dims, t.s.First+t.first
	width := d.group() * d.HeadDim
	if d.OutputGate {
		for r := row; r < row+t.n; r++ {
			out := a.b.Attn[r*d.qCols()+t.head*width:][:width]
			tensor.SigmoidMul(out, a.b.QKV[r*d.qkvWidth()+d.gateAt()+t.head*width:][:width], out)
		}
	}
	rows, cols := topology.Range{Lo: row, Hi: row + t.n}, topology.Range{Lo: t.head * width, Hi: (t.head + 1) * width}
	a.b.quantize(a.b.Attn, d.qCols(), d.qCols(), rows, cols)
}

// attend computes attention for decode rows. It prefetches the block after.
func (a *attention) attend(t attendTask, causal bool, after []byte) {
	defer a.attended(t)
	d, ld, pos := a.b.Dims, a.b.Dims.qkvWidth(), t.s.Start+t.first
	width, g, score := d.group()*d.HeadDim, d.group(), a.scoreOf(t)
	sc := scratch.Get().(*tensor.AttnScratch)
	defer scratch.Put(sc)
	q, out := a.rows(t)
	if causal {
		last := t.n - 1
		blocks, slots, _ := t.s.Cache.View(t.cache, t.unit, pos+last, q[last*ld:][:width], sc)
		tensor.AttendCausal(out, d.qCols(), q, ld, t.n, slots-t.n, 0, g, score, a.b.Layout, blocks, sc)
		return
	}
	if t.n > 1 {
		if masks := t.s.Cache.Masks(t.cache, t.unit, pos, t.n, q, ld, sc); masks != nil {
			tensor.AttendChosen(out, d.qCols(), q, ld, g, score, a.b.Layout, t.s.Cache.Blocks(t.cache, t.unit), masks, sc)
			return
		}
	}
	sc.After = after
	for r := range t.n {
		blocks, slots, valid := t.s.Cache.View(t.cache, t.unit, pos+r, q[r*ld:][:width], sc)
		tensor.Attend(out[r*d.qCols():], q[r*ld:], g, score, a.b.Layout, blocks, slots, valid, sc)
	}
	sc.After = nil
}

// observeQueries passes the queries to the cache policy. Of a cache shared by several layers, the
// policy observes the first layer only.
func (a *attention) observeQueries(t attendTask) {
	if a.w.SharesCache {
		return
	}
	q, _ := a.rows(t)
	t.s.Cache.Observe(t.cache, t.unit, t.s.Start+t.first, t.n, q, a.b.Dims.qkvWidth())
}
