package layer

import (
	"sync"
	"time"

	"github.com/shoal-llm/shoal/tensor"
)

var scratch = sync.Pool{New: func() any { return new(tensor.AttnScratch) }}

// queryBlock is the number of query rows of one prefill attention task.
const queryBlock = 32

// attention is the attention phase of a batch, cut by (segment, KV head), and where that
// leaves threads idle in decode by runs of slots too. Tasks and their functions are kept
// from step to step.
type attention struct {
	b       *Processor
	w       *Weights
	index   int
	entries []attendTask // of every segment and head: rotate, put; for decode all the rest too
	cut     []*longRow   // of every entry: nil, or what is left of the rest is cut by runs
	long    longRows
	reads   []attendTask // prefill: blocks of queries

	enter, read, observe func(i int)

	swiftKV  *SwiftKV
	kv       []kvTask
	rotateKV func(i int)
}

type attendTask struct {
	s              *Segment
	head, first, n int // KV head; rows within the segment
}

func (a *attention) init(b *Processor) {
	a.b = b
	a.initKV(b)
	a.enter = func(i int) {
		t := a.entries[i]
		a.rotate(t)
		if t.s.Prefill {
			if !a.w.Later {
				a.put(t)
			}
			return
		}
		if r := a.cut[i]; r != nil {
			if !a.w.Follows {
				a.put(t)
			}
			q, out := a.rows(t)
			r.begin(b, a.index, t.head, q, q[:b.Dims.group()*b.Dims.HeadDim], b.Dims.group(), out)
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
		a.prefill(a.reads[i-len(a.long.pieces)])
	}
	a.observe = func(i int) {
		t := a.entries[i]
		if a.cut[i] != nil {
			a.cut[i].fold()
		}
		if t.s.Prefill || a.cut[i] != nil {
			a.show(t)
		}
	}
}

// attend: for every segment and KV head of this rank: rotate q and k, write the
// cache, then attention of the group's query heads into Attn.
func (w *Weights) attend(index int, b *Processor) {
	a := &b.attention
	a.w, a.index = w, index
	a.entries, a.reads = a.entries[:0], a.reads[:0]
	for i := range b.Segments {
		s := &b.Segments[i]
		h := b.heads(s, b.Rank)
		for head := h.Lo; head < h.Hi; head++ {
			a.entries = append(a.entries, attendTask{s, head, 0, s.N})
			for first := 0; s.Prefill && first < s.N; first += queryBlock {
				a.reads = append(a.reads, attendTask{s, head, first, min(queryBlock, s.N-first)})
			}
		}
	}
	a.share()
	b.Pool.Run(len(a.entries), a.enter)
	a.long.cut(b.Pool.Threads())
	if n := len(a.long.pieces) + len(a.reads); n > 0 {
		b.Pool.Run(n, a.read)
		began := time.Now()
		b.Pool.Run(len(a.entries), a.observe)
		b.Observed += time.Since(began)
	}
}

// share finds the entries that are too long for one thread.
func (a *attention) share() {
	a.long.reset()
	a.cut = a.cut[:0]
	threads, all := a.b.Pool.Threads(), 0
	for _, t := range a.entries {
		a.cut = append(a.cut, nil)
		all += a.long.blocks(a.index, t.head, t)
	}
	for i, t := range a.entries {
		if worthCutting(a.long.blocks(a.index, t.head, t), all, threads) && t.s.N == 1 {
			a.cut[i] = a.long.add(t)
		}
	}
}

// rotate norms and rotates the queries of a head, and its keys if they are the layer's own.
func (a *attention) rotate(t attendTask) {
	b, d := a.b, a.b.Dims
	ld, half, hd, g := b.qkvWidth(), d.HeadDim/2, d.HeadDim, d.group()
	for r := range t.s.N {
		row := t.s.First + r
		cos, sin := b.Cos[a.w.Rope][row*half:(row+1)*half], b.Sin[a.w.Rope][row*half:(row+1)*half]
		line := b.QKV[row*ld : (row+1)*ld]
		for q := t.head * g; q < (t.head+1)*g; q++ {
			headNorm(line[q*hd:(q+1)*hd], a.w.QNorm, d.NormEps)
			tensor.RopeRotateHalf(line[q*hd:(q+1)*hd], cos, sin)
		}
		if a.w.Later {
			continue
		}
		k := line[d.qCols()+t.head*hd:][:hd]
		headNorm(k, a.w.KNorm, d.NormEps)
		tensor.RopeRotateHalf(k, cos, sin)
	}
}

// put writes keys and values into the cache.
func (a *attention) put(t attendTask) {
	b := a.b
	if a.w.Later {
		a.putRows(a.index, t, b.KV[b.kvColumn(a.index-a.swiftKV.First):], b.kvWidth())
		return
	}
	a.putRows(a.index, t, b.QKV[b.Dims.qCols():], b.qkvWidth())
}

// after is a block that the task behind a decode task will read, if that is known before its
// view, and prefetches what that will write: threads have runs of tasks, and each begins with
// cache misses otherwise.
func (a *attention) after(i int) []byte {
	if i+1 < len(a.entries) {
		if t := a.entries[i+1]; !t.s.Prefill {
			if blocks := t.s.Cache.Blocks(a.index, t.head); len(blocks) > 0 {
				t.s.Cache.Fetch(a.index, t.head, t.s.Start)
				if t.s.Cache.Read(a.index, t.head) == len(blocks) {
					return blocks[0]
				}
			}
		}
	}
	return nil
}

// decode puts and attends to the decode rows of a segment: the bits are those of one token
// a step.
func (a *attention) decode(t attendTask, after []byte) {
	together, causal := t.s.Cache.Together(a.index, t.s.Start, t.s.N)
	if !together {
		t.n = 1
	}
	for ; t.first < t.s.N; t.first += t.n {
		if !a.w.Follows || !together { // written again, the row undoes those behind it
			a.put(t)
		}
		a.attend(t, causal, after)
		a.show(t)
	}
}

// rows are the queries of a task's rows and where their attention goes.
func (a *attention) rows(t attendTask) (q, out []float32) {
	d, row := a.b.Dims, t.s.First+t.first
	at := t.head * d.group() * d.HeadDim
	return a.b.QKV[row*a.b.qkvWidth()+at:], a.b.Attn[row*d.qCols()+at:]
}

// prefill is attention of a block of prompt rows.
func (a *attention) prefill(t attendTask) {
	d := a.b.Dims
	sc := scratch.Get().(*tensor.AttnScratch)
	defer scratch.Put(sc)
	q, out := a.rows(t)
	tensor.AttendCausal(out, d.qCols(), q, a.b.qkvWidth(), t.n, t.s.Start+t.first, a.w.Window, d.group(), d.scale(), a.b.Layout, t.s.Cache.Blocks(a.index, t.head), sc)
}

// attend is attention of decode rows, behind which the block after is prefetched.
func (a *attention) attend(t attendTask, causal bool, after []byte) {
	d, ld, pos := a.b.Dims, a.b.qkvWidth(), t.s.Start+t.first
	width, g, scale := d.group()*d.HeadDim, d.group(), d.scale()
	sc := scratch.Get().(*tensor.AttnScratch)
	defer scratch.Put(sc)
	q, out := a.rows(t)
	if causal {
		last := t.n - 1
		blocks, slots, _ := t.s.Cache.View(a.index, t.head, pos+last, q[last*ld:][:width], sc)
		tensor.AttendCausal(out, d.qCols(), q, ld, t.n, slots-t.n, 0, g, scale, a.b.Layout, blocks, sc)
		return
	}
	sc.After = after
	for r := range t.n {
		blocks, slots, valid := t.s.Cache.View(a.index, t.head, pos+r, q[r*ld:][:width], sc)
		tensor.Attend(out[r*d.qCols():], q[r*ld:], g, scale, a.b.Layout, blocks, slots, valid, sc)
	}
	sc.After = nil
}

// show lets the policy see the queries: of a cache that several layers read, the first's.
func (a *attention) show(t attendTask) {
	if a.w.Follows {
		return
	}
	q, _ := a.rows(t)
	t.s.Cache.Observe(a.index, t.head, t.s.Start+t.first, t.n, q, a.b.qkvWidth())
}
