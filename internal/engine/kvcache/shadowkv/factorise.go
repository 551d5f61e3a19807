package shadowkv

import (
	"math/bits"
	"sync"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/subspace"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Build implements kvcache.StoreIndex: it computes the factors of a prompt whose rows are complete.
func (f *factored) Build(_ int, run kvcache.Run, ropes kvcache.Ropes) error {
	if f.blocks == 0 || f.moved {
		return nil
	}
	recalled := make([]bool, len(f.layers))
	for layer := range f.layers { // one after another: results are large
		recalled[layer] = len(f.layers[layer]) > 0 && f.recall(layer)
	}
	run(len(f.layers), func(layer int) {
		if len(f.layers[layer]) == 0 {
			return
		}
		if !recalled[layer] {
			f.factorise(layer, ropes.Of(layer))
		}
		f.moveRows(layer)
	})
	for layer := range f.layers {
		if len(f.layers[layer]) > 0 && !recalled[layer] {
			f.keep(layer)
		}
	}
	return nil
}

var scratches = sync.Pool{New: func() any { return new(tensor.AttnScratch) }}

// factorise computes the basis and the coefficients of a layer.
func (f *factored) factorise(layer int, rope kvcache.Rope) {
	scratch := scratches.Get().(*tensor.AttnScratch)
	defer scratches.Put(scratch)
	l, heads, rank, prompt := f.l, f.layers[layer], f.rank, f.s.Prompt()
	d, wide := l.KDim, len(heads)*l.KDim
	keys, tile := make([]float32, tensor.BlockSlots*wide),
		make([]float32, max(tensor.TileFloats(wide, tensor.BlockSlots), tensor.TileFloats(tensor.BlockSlots, wide)))
	gram := make([]float32, wide*wide)
	for b := 0; b*tensor.BlockSlots < prompt; b++ {
		n := min(tensor.BlockSlots, prompt-b*tensor.BlockSlots)
		f.plainKeys(keys, layer, b, n, rope)
		for i := range n {
			for e, x := range keys[i*wide:][:wide] {
				tile[tensor.Tile(wide, e, i)] = x
			}
		}
		for r := 0; r < wide; r += 8 { // the upper triangle
			tensor.MulAdd(gram[r*wide:], wide, tile, wide, r, 8, keys, wide, n, r, wide, scratch)
		}
	}
	for r := range wide {
		for c := range r {
			gram[r*wide+c] = gram[c*wide+r]
		}
	}
	basis := subspace.Leading(gram, wide, rank, scratch)
	across := make([]float32, wide*rank)
	for r := range rank {
		for e, x := range basis[r*wide:][:wide] {
			across[e*rank+r] = x
		}
		for h := range heads {
			tensor.Store(heads[h].basis[4*r*d:], basis[r*wide+h*d:][:d], tensor.F32)
		}
	}
	kind, _ := coeffType(l)
	out := make([]float32, tensor.BlockSlots*rank)
	for b := range f.blocks {
		f.plainKeys(keys, layer, b, tensor.BlockSlots, rope)
		for i := range tensor.BlockSlots {
			for e := 0; e < wide; e += tensor.BlockSlots {
				copy(tile[tensor.Tile(tensor.BlockSlots, i, e):][:tensor.BlockSlots], keys[i*wide+e:(i+1)*wide])
			}
		}
		clear(out)
		tensor.MulAdd(out, rank, tile, tensor.BlockSlots, 0, tensor.BlockSlots, across, rank, wide, 0, rank, scratch)
		tensor.Store(heads[0].coeffs[b], out, kind)
	}
}

// moveRows copies the values and the outliers of a layer's heads out of rows that will be freed.
func (f *factored) moveRows(layer int) {
	scratch := scratches.Get().(*tensor.AttnScratch)
	defer scratches.Put(scratch)
	for head, h := range f.layers[layer] {
		rows := f.s.Blocks(layer, head)
		f.saveExact(h, rows, f.choose(f.l, f.s.IndexBlocks(layer, head), f.marked(f.s.Prompt()), scratch))
		for b, v := range h.values {
			for i := 0; i < tensor.BlockSlots; i += f.chunk {
				f.l.SaveValues(v[i/f.chunk*f.l.ValueBytes(f.chunk):], rows[b], i, f.chunk)
			}
		}
	}
}

// saveExact copies the outliers out of the rows before these are freed.
func (f *factored) saveExact(h *factors, rows [][]byte, outliers []uint64) {
	each := tensor.BlockSlots / f.chunk
	for i, word := range outliers {
		for ; word != 0; word &= word - 1 {
			if c := i*64 + bits.TrailingZeros64(word); c < f.blocks*each {
				f.l.SavePage(f.page(h, len(h.exact)), rows[c/each], c%each*f.chunk, f.chunk)
				h.exact = append(h.exact, int32(c))
			}
		}
	}
}

// page returns the memory of the i-th exact chunk.
func (f *factored) page(h *factors, i int) []byte {
	each, size := tensor.BlockSlots/f.chunk, f.l.PageBytes(f.chunk)
	return h.pages[i/each][i%each*size:][:size]
}

// plainKeys computes the keys of n tokens of a block before rotation, [n][heads*KDim].
func (f *factored) plainKeys(keys []float32, layer, block, n int, rope kvcache.Rope) {
	d, heads := f.l.KDim, len(f.layers[layer])
	back := make([]float32, d/2)
	for i := range n {
		var cos []float32
		if rope != nil {
			var sin []float32
			cos, sin = rope(block*tensor.BlockSlots + i)
			for e, x := range sin {
				back[e] = -x
			}
		}
		for h := range heads {
			key := keys[(i*heads+h)*d:][:d]
			f.l.Key(key, f.s.Blocks(layer, h)[block], i)
			if rope != nil {
				tensor.RopeRotateHalf(key, cos, back)
			}
		}
	}
}
