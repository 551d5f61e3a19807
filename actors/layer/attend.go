package layer

import (
	"sync"
	"time"

	"shoal/tensor"
)

var scratch = sync.Pool{New: func() any { return new(tensor.AttnScratch) }}

// queryBlock is the number of query rows of one prefill attention task.
const queryBlock = 32

// attention is the attention phase of a batch, cut by (segment, KV head), so that
// one long sequence occupies as many threads as it has KV heads. A head's slots
// are one chain and are never cut. Tasks and their functions are kept from step
// to step.
type attention struct {
	b       *Batch
	w       *Weights
	index   int
	entries []attendTask // of every segment and head: rotate, write; for decode all the rest too
	reads   []attendTask // prefill: blocks of queries

	enter, read, observe func(i int)
}

type attendTask struct {
	s           *Segment
	head, first int // KV head; first query row within the segment
}

func (a *attention) init(b *Batch) {
	a.b = b
	a.enter = func(i int) {
		t := a.entries[i]
		a.write(t)
		if !t.s.Prefill {
			a.attend(t, a.after(i))
			a.show(t)
		}
	}
	a.read = func(i int) { a.attend(a.reads[i], nil) }
	a.observe = func(i int) {
		if t := a.entries[i]; t.s.Prefill {
			a.show(t)
		}
	}
}

// attend: for every segment and KV head of this rank: rotate q and k, write the
// cache, then attention of the group's query heads into Attn.
func (w *Weights) attend(index int, b *Batch) {
	a := &b.attention
	a.w, a.index = w, index
	a.entries, a.reads = a.entries[:0], a.reads[:0]
	for i := range b.Segments {
		s := &b.Segments[i]
		h := b.heads(s, b.Rank)
		for head := h.Lo; head < h.Hi; head++ {
			a.entries = append(a.entries, attendTask{s, head, 0})
			for first := 0; s.Prefill && first < s.N; first += queryBlock {
				a.reads = append(a.reads, attendTask{s, head, first})
			}
		}
	}
	b.Pool.Run(len(a.entries), a.enter)
	if len(a.reads) > 0 {
		b.Pool.Run(len(a.reads), a.read)
		began := time.Now()
		b.Pool.Run(len(a.entries), a.observe)
		b.Observed += time.Since(began)
	}
}

// write norms and rotates the queries and keys of a head and puts keys and values
// into the cache.
func (a *attention) write(t attendTask) {
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
		k := line[d.qCols()+t.head*hd:][:hd]
		headNorm(k, a.w.KNorm, d.NormEps)
		tensor.RopeRotateHalf(k, cos, sin)
	}
	k, v := t.s.First*ld+d.qCols()+t.head*hd, t.s.First*ld+d.qCols()+d.kCols()+t.head*hd
	t.s.Cache.Put(a.index, t.head, t.s.Start, t.s.N, b.QKV[k:], ld, b.QKV[v:], ld)
}

// after is a block that the task behind a decode task will read, and prefetches what that
// will write: threads have runs of tasks, and each begins with cache misses otherwise.
func (a *attention) after(i int) []byte {
	if i+1 < len(a.entries) {
		if t := a.entries[i+1]; !t.s.Prefill {
			if blocks := t.s.Cache.Blocks(a.index, t.head); len(blocks) > 0 {
				t.s.Cache.Fetch(a.index, t.head, t.s.Start)
				return blocks[0]
			}
		}
	}
	return nil
}

// attend is attention of a block of prompt rows, or of all decode rows of a segment,
// behind which the block after is prefetched.
func (a *attention) attend(t attendTask, after []byte) {
	b, d := a.b, a.b.Dims
	ld, hd, g, scale := b.qkvWidth(), d.HeadDim, d.group(), d.scale()
	sc := scratch.Get().(*tensor.AttnScratch)
	defer scratch.Put(sc)
	row := t.s.First + t.first
	q := b.QKV[row*ld+t.head*g*hd:]
	out := b.Attn[row*d.qCols()+t.head*g*hd:]
	if t.s.Prefill {
		blocks, _, _ := t.s.Cache.View(a.index, t.head, q[:g*hd], sc)
		n := min(queryBlock, t.s.N-t.first)
		tensor.AttendCausal(out, d.qCols(), q, ld, n, t.s.Start+t.first, a.w.Window, g, scale, b.Layout, blocks, sc)
		return
	}
	sc.After = after
	for r := range t.s.N {
		blocks, slots, valid := t.s.Cache.View(a.index, t.head, q[r*ld:r*ld+g*hd], sc)
		tensor.Attend(out[r*d.qCols():], q[r*ld:], g, scale, b.Layout, blocks, slots, valid, sc)
	}
	sc.After = nil
}

// show lets the policy see the queries.
func (a *attention) show(t attendTask) {
	ld, g, hd := a.b.qkvWidth(), a.b.Dims.group(), a.b.Dims.HeadDim
	t.s.Cache.Observe(a.index, t.head, t.s.Start, t.s.N, a.b.QKV[t.s.First*ld+t.head*g*hd:], ld)
}
