package layer

import (
	"sync"

	"github.com/shoal-llm/shoal/actors/layer/indexer"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// Indexer is a layer's indexer (model.Indexer). Every rank has all of its weights, and
// chooses tokens for the rows whose attention it computes.
type Indexer struct {
	Q           *tensor.Weight // (heads*dim, query rank)
	Norm, Shift []float32      // (dim)
}

// chosen has the slots that the rows of a batch read in a layer with an indexer.
type chosen struct {
	queries []float32    // (T, heads*dim), rotated
	slots   [][]uint64   // by row; nil: all
	rows    []attendTask // of one row each
}

var indexScratch = sync.Pool{New: func() any { return new(indexer.Scratch) }}

// project computes the queries of rows, whose latents it normalises.
func (x *Indexer) project(b *Processor, rows topology.Range) {
	d, c, half := b.Dims, &b.latentAttention.chosen, b.Dims.Latent.Rope/2
	dim, width := d.Latent.Index.Dim, d.Latent.Index.Heads*d.Latent.Index.Dim
	c.queries = growF(c.queries, b.maxRows*width)
	b.each(rows.Len(), b.latent.norm)
	if rows.Len() > 0 {
		b.Pool.MatMul(c.queries[rows.Lo*width:], width, x.Q, b.latent.down[rows.Lo*d.downCols():], d.downCols(), rows.Len())
	}
	for row := rows.Lo; row < rows.Hi; row++ {
		for at := 0; at < width; at += dim {
			x.rotate(b, row, c.queries[row*width+at:][:2*half])
		}
	}
}

// key completes the indexer's key of a row.
func (x *Indexer) key(b *Processor, row int, k []float32) {
	half := b.Dims.Latent.Rope / 2
	tensor.LayerNorm(k, k, x.Norm, b.Dims.LatentEps)
	tensor.Add(k, x.Shift)
	x.rotate(b, row, k[:2*half])
}

// rotate rotates the first part of a head. Pairs of neighbours become pairs of halves, in queries and keys
// alike, which changes no product.
func (x *Indexer) rotate(b *Processor, row int, part []float32) {
	half := len(part) / 2
	if b.Dims.Latent.Index.Neighbours {
		var room [64]float32
		odd := room[:0]
		for i := range half {
			odd = append(odd, part[2*i+1])
			part[i] = part[2*i]
		}
		copy(part[half:], odd)
	}
	tensor.RopeRotateHalf(part, b.Cos[0][row*half:(row+1)*half], b.Sin[0][row*half:(row+1)*half])
}

// choose finds the slots that each row of the round reads.
func (a *latentAttention) choose() {
	c, b := &a.chosen, a.b
	c.rows, c.slots = c.rows[:0], make([][]uint64, b.batch.T)
	for _, t := range a.reads {
		if t.head != 0 && (!t.s.Prefill || t.head != b.batch.heads(t.s, b.batch.Rank).Lo) {
			continue // the rows of another task's heads
		}
		for i := range t.n {
			c.rows = append(c.rows, attendTask{s: t.s, first: t.first + i, n: 1})
		}
	}
	if len(c.rows) > 0 && len(c.rows) < b.Pool.Threads() {
		a.chooseSplit()
		return
	}
	b.Pool.Run(len(c.rows), func(i int) {
		t, d := c.rows[i], b.Dims.Latent
		row, width := t.s.First+t.first, d.Index.Heads*d.Index.Dim
		sc, own := scratch.Get().(*tensor.AttnScratch), indexScratch.Get().(*indexer.Scratch)
		blocks, n, valid := a.view(t, sc)
		w := b.latent.down[(row+1)*b.Dims.downCols()-d.Index.Heads:][:d.Index.Heads]
		r := indexer.Rows{Layout: b.Layout, At: d.Rank + d.Rope, Dim: d.Index.Dim}
		c.slots[row] = own.Choose(r, blocks, n, valid, c.queries[row*width:][:width], w, d.Index.TopK, sc)
		scratch.Put(sc)
		indexScratch.Put(own)
	})
}

// chooseSplit is choose for fewer rows than threads: several threads score parts of one row. A score does not
// depend on the others, so the choice is the same.
func (a *latentAttention) chooseSplit() {
	c, b := &a.chosen, a.b
	d := b.Dims.Latent
	layout := indexer.Rows{Layout: b.Layout, At: d.Rank + d.Rope, Dim: d.Index.Dim}
	for _, t := range c.rows {
		row, width := t.s.First+t.first, d.Index.Heads*d.Index.Dim
		sc := scratch.Get().(*tensor.AttnScratch)
		blocks, n, valid := a.view(t, sc)
		if indexer.Chooses(n, valid, d.Index.TopK) {
			w := b.latent.down[(row+1)*b.Dims.downCols()-d.Index.Heads:][:d.Index.Heads]
			scores := make([]float32, n)
			used := (n + tensor.BlockSlots - 1) / tensor.BlockSlots
			parts := min(b.Pool.Threads(), used)
			b.Pool.Run(parts, func(i int) {
				own, attn := indexScratch.Get().(*indexer.Scratch), scratch.Get().(*tensor.AttnScratch)
				own.Score(layout, blocks, i*used/parts, (i+1)*used/parts, valid, c.queries[row*width:][:width], w, scores, attn)
				indexScratch.Put(own)
				scratch.Put(attn)
			})
			c.slots[row] = indexer.Best(scores, d.Index.TopK, sc)
		}
		scratch.Put(sc)
	}
}

// view returns the slots that the first row of a task could read.
func (a *latentAttention) view(t attendTask, sc *tensor.AttnScratch) (blocks [][]byte, n int, valid []uint64) {
	pos, ldq := t.s.Start+t.first, a.b.Dims.qkvWidth()
	if t.s.Prefill {
		return t.s.Cache.Blocks(a.index, 0), pos + 1, nil
	}
	return t.s.Cache.View(a.index, 0, pos, a.b.QKV[(t.s.First+t.first)*ldq:][:ldq], sc)
}

// attendChosen computes the attention of a task's rows to the slots that they read.
func (a *latentAttention) attendChosen(t attendTask, q, out []float32, sc *tensor.AttnScratch) {
	b, d := a.b, a.b.Dims
	heads := d.group()
	if !t.s.Prefill {
		heads = a.heads(t)
	}
	for r := range t.n {
		one := t
		one.first += r
		blocks, n, valid := a.view(one, sc)
		if c := a.chosen.slots[t.s.First+one.first]; c != nil {
			valid = c
		}
		tensor.Attend(out[r*d.Heads*d.Latent.Rank:], q[r*b.Dims.qkvWidth():], heads, d.score(), b.Layout, blocks, n, valid, sc)
	}
}
