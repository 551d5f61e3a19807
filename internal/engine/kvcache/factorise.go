package kvcache

import (
	"math/bits"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// factorise computes the factors of a prompt whose rows are complete, and frees the rows.
func (s *Store) factorise(run func(n int, f func(i int)), ropes Ropes) {
	var layers []int
	for i := 0; i < len(s.tables); i += s.heads.Len() {
		if f := s.tables[i].factors; f != nil && !f.given {
			layers = append(layers, i)
		}
	}
	run(len(layers), func(i int) {
		heads := s.tables[layers[i]:][:s.heads.Len()]
		s.factoriseLayer(heads, ropes.Of(heads[0].Layer))
	})
	for i := range s.tables {
		t := &s.tables[i]
		f := t.factors
		if f == nil || f.given {
			continue
		}
		rows := t.rows()
		if f.rest != nil {
			for j, b := range f.rest {
				copy(b, rows[f.blocks+j])
			}
			s.arena.Release(rows)
			copy(rows[f.blocks:], f.rest)
			f.rest = nil
		} else {
			s.arena.Release(rows[:f.blocks])
		}
		clear(rows[:f.blocks])
		t.freed = f.blocks
	}
}

// factoriseLayer computes the factors of a layer's heads.
func (s *Store) factoriseLayer(heads []table, rope Rope) {
	scratch := scratches.Get().(*tensor.AttnScratch)
	defer scratches.Put(scratch)
	l, p, f := s.g.Layout, heads[0].rule, heads[0].factors
	rank := p.Factors.Rank
	d, wide := l.KDim, len(heads)*l.KDim
	keys, tile := make([]float32, tensor.BlockSlots*wide), make([]float32, max(tensor.TileFloats(wide, tensor.BlockSlots), tensor.TileFloats(tensor.BlockSlots, wide)))
	gram := make([]float32, wide*wide)
	for b := range int(blocksOf(s.prompt)) {
		n := min(tensor.BlockSlots, s.prompt-b*tensor.BlockSlots)
		s.plainKeys(keys, heads, b, n, rope)
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
	basis := leading(gram, wide, rank, scratch)
	across := make([]float32, wide*rank)
	for r := range rank {
		for e, x := range basis[r*wide:][:wide] {
			across[e*rank+r] = x
		}
		for h := range heads {
			tensor.Store(heads[h].factors.basis[4*r*d:], basis[r*wide+h*d:][:d], tensor.F32)
		}
	}
	kind, _ := coeffType(l)
	out := make([]float32, tensor.BlockSlots*rank)
	for b := range f.blocks {
		s.plainKeys(keys, heads, b, tensor.BlockSlots, rope)
		for i := range tensor.BlockSlots {
			for e := 0; e < wide; e += tensor.BlockSlots {
				copy(tile[tensor.Tile(tensor.BlockSlots, i, e):][:tensor.BlockSlots], keys[i*wide+e:(i+1)*wide])
			}
		}
		clear(out)
		tensor.MulAdd(out, rank, tile, tensor.BlockSlots, 0, tensor.BlockSlots, across, rank, wide, 0, rank, scratch)
		tensor.Store(f.coeffs[b], out, kind)
	}
	for h := range heads {
		t := &heads[h]
		t.saveExact(l, p.Factors.Choose(l, t.planes[indexPlane].blocks, p.Factors.Marked(s.prompt), scratch))
		chunk, size := p.Selector.Page(), l.ValueBytes(p.Selector.Page())
		for b, v := range t.factors.values {
			for i := 0; i < tensor.BlockSlots; i += chunk {
				l.SaveValues(v[i/chunk*size:], t.rows()[b], i, chunk)
			}
		}
	}
}

// saveExact copies the outliers out of the rows before these are freed.
func (t *table) saveExact(l tensor.KVLayout, outliers []uint64) {
	chunk := t.rule.Selector.Page()
	each := tensor.BlockSlots / chunk
	for i, word := range outliers {
		for ; word != 0; word &= word - 1 {
			if c := i*64 + bits.TrailingZeros64(word); c < t.factors.blocks*each {
				l.SavePage(t.factors.page(l, chunk, len(t.factors.exact)), t.rows()[c/each], c%each*chunk, chunk)
				t.factors.exact = append(t.factors.exact, int32(c))
			}
		}
	}
}

// page is the memory of the i-th exact chunk.
func (f *factors) page(l tensor.KVLayout, chunk, i int) []byte {
	each, size := tensor.BlockSlots/chunk, l.PageBytes(chunk)
	return f.pages[i/each][i%each*size:][:size]
}

// plainKeys computes the keys of n tokens of a block before rotation, [n][heads*KDim].
func (s *Store) plainKeys(keys []float32, heads []table, block, n int, rope Rope) {
	d := s.g.Layout.KDim
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
			key := keys[(i*len(heads)+h)*d:][:d]
			s.g.Layout.Key(key, heads[h].rows()[block], i)
			if rope != nil {
				tensor.RopeRotateHalf(key, cos, back)
			}
		}
	}
}
