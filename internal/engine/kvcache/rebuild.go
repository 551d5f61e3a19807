package kvcache

import (
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// viewFactored is View of the chosen chunks of a head with factors.
func (s *Store) viewFactored(t *table, pages []int32, n int, rope Rope, scratch *tensor.AttnScratch) ([][]byte, int, []uint64) {
	f, chunk, l := t.factors, t.rule.Selector.Page(), s.g.Layout
	rebuild := rebuilding{f: f, coeffs: s.table(t.Layer, s.heads.Lo).factors.coeffs, rank: t.rule.Factors.Rank, chunk: chunk, l: l, rope: rope, scratch: scratch}
	if t.fetched != nil {
		s.fetchPages(t, f.absent(t.fetched, pages, tensor.BlockSlots/chunk))
	}
	next, size := 0, l.ValueBytes(chunk)
	blocks, slots, mask := s.viewPages(t, pages, n, scratch, func(block []byte, first int, i int) {
		if at, exact := slices.BinarySearch(f.exact, pages[i]); exact {
			l.LoadPage(block, first, chunk, f.page(l, chunk, at))
			return
		}
		slot := int(pages[i]) * chunk
		if values := t.values(slot, next, size); values != nil {
			l.LoadValues(block, first, chunk, values)
		} else { // lost; the result of the step is discarded
			clear(block)
		}
		next++
		rebuild.add(block, first, slot)
	})
	rebuild.flush()
	return blocks, slots, mask
}

// values returns the values of the page at a slot, the at-th that a file may have; nil: they are
// lost.
func (t *table) values(slot, at, size int) []byte {
	switch {
	case t.fetched == nil:
		page := slot / t.rule.Selector.Page()
		each := tensor.BlockSlots / t.rule.Selector.Page()
		return t.factors.values[page/each][page%each*size:][:size]
	case at < len(t.fetched.pages):
		return t.fetched.page(at, size)
	}
	return nil
}

// absent returns the chosen pages whose values are in a file.
func (f *factors) absent(in *fetched, pages []int32, each int) []int32 {
	in.want = in.want[:0]
	for _, page := range pages {
		if int(page) >= f.blocks*each {
			break
		}
		if _, exact := slices.BinarySearch(f.exact, page); !exact {
			in.want = append(in.want, page)
		}
	}
	return in.want
}

// rebuilding rebuilds keys from coefficients, several chunks at once.
type rebuilding struct {
	f       *factors
	coeffs  [][]byte
	rank    int
	chunk   int
	l       tensor.KVLayout
	rope    Rope
	scratch *tensor.AttnScratch
	n       int
	chunks  [togetherRebuilt]rebuilt
}

// togetherRebuilt is how many chunks are rebuilt at once. With 8 tokens each, their coefficients
// stay in the L1 cache.
const togetherRebuilt = 6

// rebuilt is a chunk from a slot of the cache on, and the destination of its keys.
type rebuilt struct {
	block       []byte
	first, slot int
}

func (r *rebuilding) add(block []byte, first, slot int) {
	r.chunks[r.n] = rebuilt{block, first, slot}
	if r.n++; r.n == togetherRebuilt {
		r.flush()
	}
}

func (r *rebuilding) flush() {
	rows, rank, d := r.n*r.chunk, r.rank, r.l.KDim
	floats := tensor.TileFloats(rows, rank)
	row := r.scratch.Row(floats + rows*d)
	tile, keys := row[:floats], row[floats:]
	kind, size := coeffType(r.l)
	for i, c := range r.chunks[:r.n] {
		from := r.coeffs[c.slot/tensor.BlockSlots][c.slot%tensor.BlockSlots*rank*size:]
		for j := range r.chunk {
			for e := 0; e < rank; e += tensor.BlockSlots {
				some := min(tensor.BlockSlots, rank-e)
				tensor.Widen(tile[tensor.Tile(rows, i*r.chunk+j, e):][:some], from[(j*rank+e)*size:], kind)
			}
		}
	}
	clear(keys)
	tensor.MulAdd(keys, d, tile, rows, 0, rows, tensor.Floats(r.f.basis), d, rank, 0, d, r.scratch)
	for i, c := range r.chunks[:r.n] {
		for j := range r.chunk {
			key := keys[(i*r.chunk+j)*d:][:d]
			if r.rope != nil {
				cos, sin := r.rope(c.slot + j)
				tensor.RopeRotateHalf(key, cos, sin)
			}
			r.l.SetKey(c.block, c.first+j, key)
		}
	}
	r.n = 0
}
