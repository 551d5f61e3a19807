package shadowkv

import (
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// View implements kvcache.RowReplacer.
func (f *factored) View(layer, head int, pages []int32, n int, rope kvcache.Rope, scratch *tensor.AttnScratch) ([][]byte, int, []uint64) {
	h, size := f.layers[layer][head], f.l.ValueBytes(f.chunk)
	rebuild := rebuilding{factored: f, coeffs: f.layers[layer][0].coeffs, basis: h.basis, rope: rope, scratch: scratch}
	spilled, next := false, 0
	if h.values == nil {
		spilled = f.s.FetchPages(layer, head, f.absent(h, pages))
	}
	blocks, slots, mask := f.s.ViewPages(layer, head, pages, n, scratch, func(block []byte, first int, i int) {
		if at, exact := slices.BinarySearch(h.exact, pages[i]); exact {
			f.l.LoadPage(block, first, f.chunk, f.page(h, at))
			return
		}
		slot := int(pages[i]) * f.chunk
		var values []byte
		if spilled {
			values = f.s.FetchedPage(layer, head, next)
		} else {
			values = h.values[slot/tensor.BlockSlots][slot%tensor.BlockSlots/f.chunk*size:][:size]
		}
		if values != nil {
			f.l.LoadValues(block, first, f.chunk, values)
		} else { // lost; the result of the step is discarded
			clear(block)
		}
		next++
		rebuild.add(block, first, slot)
	})
	rebuild.flush()
	return blocks, slots, mask
}

// absent returns the chosen pages whose values are in a file.
func (f *factored) absent(h *factors, pages []int32) []int32 {
	h.want = h.want[:0]
	for _, page := range pages {
		if int(page) >= f.blocks*tensor.BlockSlots/f.chunk {
			break
		}
		if _, exact := slices.BinarySearch(h.exact, page); !exact {
			h.want = append(h.want, page)
		}
	}
	return h.want
}

// ReadValues implements kvcache.RowReplacer.
func (f *factored) ReadValues(dst []byte, layer, head, block int) {
	copy(dst, f.layers[layer][head].values[block])
}

// DropValues implements kvcache.RowReplacer.
func (f *factored) DropValues(layer, head int) {
	h := f.layers[layer][head]
	f.s.Arena().Release(h.values)
	h.values = nil
}

// rebuilding rebuilds keys from coefficients, several chunks at once.
type rebuilding struct {
	*factored
	coeffs  [][]byte
	basis   []byte
	rope    kvcache.Rope
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
	tensor.MulAdd(keys, d, tile, rows, 0, rows, tensor.Floats(r.basis), d, rank, 0, d, r.scratch)
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
