package accelerator

import (
	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/internal/engine/cuda"
	"github.com/shoal-llm/shoal/internal/engine/cuda/launch"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// attention is the attention of rows with some KV heads. qkv has the columns of these heads, ld apart.
type attention struct {
	*weights
	rows  topology.Range
	qkv   cuda.Pointer
	ld    int
	heads topology.Range
}

// queries returns the address of the queries of a row.
func (a *attention) queries(row int) cuda.Pointer {
	return a.qkv.Add(4 * int64(row-a.rows.Lo) * int64(a.ld))
}

// attendAll is attend for all rows and heads.
func (b *Backend) attendAll(w *weights) {
	b.attend(attention{w, b.allRows(), b.qkv, b.qkvWidth(), topology.Range{Hi: b.dims.KVHeads}})
}

// attend rotates queries and keys, writes keys and values into the caches, and computes attention: of
// all decode rows together, and of each prompt.
func (b *Backend) attend(a attention) {
	decode := topology.Range{Lo: a.rows.Lo, Hi: max(a.rows.Lo, min(a.rows.Hi, b.prompts))}
	described := func(row int) cuda.Pointer { return b.frame.rows.Add(int64(row) * launch.RowBytes) }
	if p := &b.frame.placed; p.used && decode.Len() > 0 {
		for _, run := range p.runs {
			p.later(b, a.index, run)
			rows, places, slots := p.of(a.index, run.Lo)
			b.write(a, run, rows, places)
			b.attendRows(a, run, rows, slots, false)
			b.observeRows(a, run, rows)
		}
		b.write(a, topology.Range{Lo: decode.Hi, Hi: a.rows.Hi}, described(decode.Hi), 0)
	} else {
		o := b.attendOf(a, decode, described(decode.Lo), wholeRuns(b.slots), false)
		if decode == a.rows && o.Rotates() {
			o.Rotation = b.rotation(a, decode.Lo)
		} else {
			b.write(a, a.rows, described(a.rows.Lo), 0)
		}
		b.doAttend(o)
	}
	for i := range b.batch.Segments {
		if s := &b.batch.Segments[i]; s.Prefill && a.rows.Lo <= s.First && s.First < a.rows.Hi {
			b.attendRows(a, topology.Range{Lo: s.First, Hi: s.First + s.N}, described(s.First), s.Start+s.N, true)
			b.observePrompt(a, s, described(s.First))
		}
	}
}

// cacheOf returns the cache of the layer.
func (b *Backend) cacheOf(a attention) launch.Cache {
	return launch.Cache{
		Type: b.cache.Type, Arena: b.blocks.Base(), Tables: b.frame.tables.there, Index: a.index, KVHeads: a.heads.Len(),
		HeadDim: b.dims.HeadDim,
	}
}

// group returns the number of query heads of a KV head.
func (b *Backend) group() int { return b.dims.Heads / b.dims.KVHeads }

// rotation returns the rotations and norms of queries and keys from a row on.
func (b *Backend) rotation(a attention, row int) launch.Rotation {
	skipped := 4 * int64(row) * int64(b.frame.half)
	return launch.Rotation{Cos: b.frame.cos[a.rope].Add(skipped), Sin: b.frame.sin[a.rope].Add(skipped),
		QNorm: a.qNorm, KNorm: a.kNorm, Eps: b.dims.NormEps}
}

// write rotates queries and keys of rows, and writes keys and values.
func (b *Backend) write(a attention, rows topology.Range, described, places cuda.Pointer) {
	b.do(launch.RopeWrite{Cache: b.cacheOf(a), Rotation: b.rotation(a, rows.Lo), QKV: a.queries(rows.Lo), Ld: a.ld,
		Heads: a.heads.Len() * b.group(),
		Rows:  described, Places: places, N: rows.Len()})
}

// attendRows computes the attention of rows over at most a number of slots.
func (b *Backend) attendRows(a attention, rows topology.Range, described cuda.Pointer, slots int, prompt bool) {
	b.doAttend(b.attendOf(a, rows, described, slots, prompt))
}

// attendOf returns the operation of attendRows, without its scratch memory.
func (b *Backend) attendOf(a attention, rows topology.Range, described cuda.Pointer, slots int, prompt bool) launch.Attend {
	d, to := &b.dims, b.input(b.attended, rows.Lo)
	o := launch.Attend{Cache: b.cacheOf(a), Q: a.queries(rows.Lo), LdQ: a.ld, Heads: a.heads.Len() * b.group(),
		Scale: b.score.Scale, Cap: b.score.Cap, Window: a.window, Rows: described, N: rows.Len(), Slots: slots, Prompt: prompt,
		LdOut: b.queryWidth()}
	if !b.several() && a.o.rounded() { // otherwise other ranks have parts of the output
		o.To = to.rounded
	}
	if o.To == (launch.Rounded{}) || a.o.plain() || prompt || d.HeadDim%tensor.BlockWidth != 0 {
		o.Out = to.plain.Add(4 * int64(a.heads.Lo*b.group()*d.HeadDim))
	}
	return o
}

// doAttend gives attention its scratch memory and adds it to the step. Many decode rows are computed in parts, one after
// the other, so that the memory stays within what ActivationBytes counts however many rows a step has.
func (b *Backend) doAttend(o launch.Attend) {
	most := o.MostRows(attendScratch(o))
	if need := o.Part(0, min(o.N, most)).ScratchBytes(); need > b.scratch.bytes {
		b.scratch.grow(b, 2*need)
	}
	o.Scratch = b.scratch.at
	if o.N <= most {
		b.do(o)
		return
	}
	for first := 0; first < o.N; first += most {
		b.do(o.Part(first, min(most, o.N-first)))
	}
}

// leastScratch is the memory that attention may take for any number of rows.
const leastScratch = 32 << 20

// attendScratch returns the memory that attention over the slots of o may take between two kernels: that of as many long
// sequences as share layer.LogitRows rows of logits.
func attendScratch(o launch.Attend) int64 {
	o.N = layer.LogitRows
	return max(leastScratch, o.ScratchBytes())
}
