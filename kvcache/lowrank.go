package kvcache

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"slices"

	"github.com/shoal-llm/shoal/tensor"
)

// ShadowKV as published (arXiv 2410.21465, algorithms 1 and 2): at the end of prefill the keys of
// all heads of a layer, side by side and without their rotations, are projected on the `rank`
// directions that say most about them. A token then has `rank` coefficients in place of its keys;
// a step rebuilds those of the chunks that it chooses, and rotates them. Exact stay the outliers
// of the prompt, the rows behind the last whole block of chunks with a landmark, and whatever is
// generated. Landmarks are those of the exact keys.
//
// Factors are made once, of rows that any cut of the prompt gives alike; a replica gets them with
// the rows, and a lost cache is read again.

// factors are what one head has of the rows that were given up: the first blocks of its prompt.
type factors struct {
	blocks int
	coeffs [][]byte // [blocks][BlockSlots][rank], of all heads of the layer; the first head's
	basis  []byte   // [rank][KDim] float32
	values [][]byte // [blocks]
	exact  []int32  // chunks with their keys, in order
	pages  [][]byte // of these
	rest   [][]byte // for the rows that stay, where they are another store's until Seal
	given  bool     // by another owner
}

// factored is how many blocks of a prompt have factors in place of keys.
func (p *Policy) factored(g Geometry, prompt int) int {
	m, ok := p.Selector.(landmarks)
	if marked := prompt/max(1, m.chunk) - m.local; ok && m.rank > 0 && marked > m.chunks+m.outliers && g.Fits(p) == nil {
		return marked * m.chunk / tensor.BlockSlots
	}
	return 0
}

// Fits says why a policy is none for caches of this shape: an error that wraps ErrPolicy.
func (g Geometry) Fits(p *Policy) error {
	switch m, _ := p.Selector.(landmarks); {
	case m.rank == 0:
		return nil
	case g.Layout.Latent:
		return fmt.Errorf("%w: keys=lowrank is for models that keep keys: this one keeps a latent row for all heads, which is of low rank already; use keys=exact", ErrPolicy)
	case m.rank >= g.KVHeads*g.Layout.KDim:
		return fmt.Errorf("%w: keys=lowrank,rank=%d is not below the %d elements of this model's keys (%d heads of %d): give a lower rank, or keys=exact", ErrPolicy, m.rank, g.KVHeads*g.Layout.KDim, g.KVHeads, g.Layout.KDim)
	}
	return nil
}

// coeff is the type of coefficients.
func (m landmarks) coeff(l tensor.KVLayout) (tensor.DType, int) {
	if l.Type == tensor.F32 {
		return tensor.F32, 4
	}
	return tensor.BF16, 2
}

// factorSizes are the bytes of the blocks of factors.
func (m landmarks) factorSizes(l tensor.KVLayout) (coeffs, basis, values int) {
	_, size := m.coeff(l)
	return tensor.BlockSlots * m.rank * size, 4 * m.rank * l.KDim, l.ValueBytes()
}

func (m landmarks) exactBlocks() int { return int(blocksOf(m.outliers * m.chunk)) }

// factorBytes are those of the factors of a layer, of all its heads.
func (r rule) factorBytes(g Geometry, prompt int) int64 {
	m, _ := r.Selector.(landmarks)
	blocks := r.factored(g, prompt)
	if blocks == 0 {
		return 0
	}
	coeffs, basis, values := m.factorSizes(g.Layout)
	return int64(blocks)*int64(coeffs) + int64(g.KVHeads)*(int64(basis)+int64(blocks)*int64(values)+blockBytes(g, int64(m.exactBlocks()))+4*int64(m.outliers))
}

// keyBytes are those of the rows of a layer that its factors stand for.
func (r rule) keyBytes(g Geometry, prompt int) int64 {
	return blockBytes(g, int64(g.KVHeads)*int64(r.factored(g, prompt)))
}

// rebuiltBytes is what a step reads of the factors of a head beyond the keys that it rebuilds.
func (r rule) rebuiltBytes(g Geometry, prompt int) int {
	if r.factored(g, prompt) == 0 {
		return 0
	}
	m, l := r.Selector.(landmarks), g.Layout
	coeffs, basis, values := m.factorSizes(l)
	return basis + m.chunks*m.chunk*(coeffs-l.BlockBytes()+values)/tensor.BlockSlots
}

// Adopts says that the owner of a sequence goes on with the blocks of its prompt as they were read.
func (p *Policy) Adopts(g Geometry, prompt int) bool {
	return p.KeepsAll() && p.factored(g, prompt) == 0
}

// openFactors gets the memory of factors, all or nothing: rest are the tables that need room for
// the rows that stay.
func (s *Store) openFactors(given bool, rest func(*table) bool) error {
	for i := range s.tables {
		t := &s.tables[i]
		blocks := t.rule.factored(s.g, s.prompt)
		if blocks == 0 {
			continue
		}
		m := t.rule.Selector.(landmarks)
		coeffs, basis, values := m.factorSizes(s.g.Layout)
		if err := s.arena.Charge(4 * int64(m.outliers)); err != nil {
			s.dropFactors()
			return err
		}
		f := &factors{blocks: blocks, exact: make([]int32, 0, m.outliers), given: given}
		t.factors = f
		var err error
		get := func(size, n int) (got [][]byte) {
			if err == nil {
				got, err = s.arena.Alloc(size, n)
			}
			return got
		}
		f.values, f.pages = get(values, blocks), get(s.g.Layout.BlockBytes(), m.exactBlocks())
		if one := get(basis, 1); err == nil {
			f.basis = one[0]
		}
		if t.Index == s.heads.Lo {
			f.coeffs = get(coeffs, blocks)
		}
		switch {
		case given: // there is nothing to give up
			t.planes[rowsPlane].blocks, t.gone = make([][]byte, blocks), blocks
		case rest(t):
			f.rest = get(s.g.Layout.BlockBytes(), int(blocksOf(s.prompt))-blocks)
		}
		if err != nil {
			s.dropFactors()
			return err
		}
	}
	return nil
}

func (s *Store) dropFactors() {
	for i := range s.tables {
		if f := s.tables[i].factors; f != nil {
			for _, blocks := range [][][]byte{f.coeffs, f.values, f.pages, f.rest} {
				s.arena.Release(blocks)
			}
			if f.basis != nil {
				s.arena.Release([][]byte{f.basis})
			}
			s.arena.Uncharge(4 * int64(cap(f.exact)))
			s.tables[i].factors = nil
		}
	}
}

// bytes are those that factors hold.
func (f *factors) bytes() int64 {
	if f == nil {
		return 0
	}
	n := 4 * int64(cap(f.exact))
	for _, b := range append(f.pieces(), f.rest...) {
		n += int64(len(b))
	}
	return n
}

// factorise makes the factors of a prompt whose rows are complete, and gives the rows up.
func (s *Store) factorise(run func(n int, f func(i int)), rope Rope) {
	var layers []int
	for i := 0; i < len(s.tables); i += s.heads.Len() {
		if f := s.tables[i].factors; f != nil && !f.given {
			layers = append(layers, i)
		}
	}
	run(len(layers), func(i int) { s.factoriseLayer(s.tables[layers[i]:][:s.heads.Len()], rope) })
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
		t.gone = f.blocks
	}
}

// factoriseLayer makes the factors of a layer's heads.
func (s *Store) factoriseLayer(heads []table, rope Rope) {
	scratch := scratches.Get().(*tensor.AttnScratch)
	defer scratches.Put(scratch)
	l, m, f := s.g.Layout, heads[0].rule.Selector.(landmarks), heads[0].factors
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
		for r := 0; r < wide; r += 8 { // the upper half
			tensor.MulAdd(gram[r*wide:], wide, tile, wide, r, 8, keys, wide, n, r, wide, scratch)
		}
	}
	for r := range wide {
		for c := range r {
			gram[r*wide+c] = gram[c*wide+r]
		}
	}
	basis := leading(gram, wide, m.rank, scratch)
	across := make([]float32, wide*m.rank)
	for r := range m.rank {
		for e, x := range basis[r*wide:][:wide] {
			across[e*m.rank+r] = x
		}
		for h := range heads {
			tensor.Store(heads[h].factors.basis[4*r*d:], basis[r*wide+h*d:][:d], tensor.F32)
		}
	}
	kind, _ := m.coeff(l)
	out := make([]float32, tensor.BlockSlots*m.rank)
	for b := range f.blocks {
		s.plainKeys(keys, heads, b, tensor.BlockSlots, rope)
		for i := range tensor.BlockSlots {
			for e := 0; e < wide; e += tensor.BlockSlots {
				copy(tile[tensor.Tile(tensor.BlockSlots, i, e):][:tensor.BlockSlots], keys[i*wide+e:(i+1)*wide])
			}
		}
		clear(out)
		tensor.MulAdd(out, m.rank, tile, tensor.BlockSlots, 0, tensor.BlockSlots, across, m.rank, wide, 0, m.rank, scratch)
		tensor.Store(f.coeffs[b], out, kind)
	}
	for h := range heads {
		t := &heads[h]
		t.saveExact(l, m, m.choose(l, t.planes[indexPlane].blocks, s.prompt/m.chunk-m.local, scratch))
		for b, v := range t.factors.values {
			l.SaveValues(v, t.rows()[b])
		}
	}
}

// saveExact copies the outliers among the rows that are given up.
func (t *table) saveExact(l tensor.KVLayout, m landmarks, outliers []uint64) {
	each := tensor.BlockSlots / m.chunk
	for i, word := range outliers {
		for ; word != 0; word &= word - 1 {
			if c := i*64 + bits.TrailingZeros64(word); c < t.factors.blocks*each {
				l.SavePage(t.factors.page(l, m, len(t.factors.exact)), t.rows()[c/each], c%each*m.chunk, m.chunk)
				t.factors.exact = append(t.factors.exact, int32(c))
			}
		}
	}
}

// page is the memory of the i-th exact chunk.
func (f *factors) page(l tensor.KVLayout, m landmarks, i int) []byte {
	each, size := tensor.BlockSlots/m.chunk, l.PageBytes(m.chunk)
	return f.pages[i/each][i%each*size:][:size]
}

// plainKeys are those of n tokens of a block before their rotation, [n][heads*KDim].
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

// powers is how often leading multiplies by the matrix: what is then left of the keys is within a
// hundredth of the least that any `rank` directions leave.
const powers = 10

// leading is an orthonormal basis, [rank][n], of nearly those directions that matter most to a
// symmetric matrix without negative eigenvalues: subspace iteration from a fixed start.
func leading(matrix []float32, n, rank int, s *tensor.AttnScratch) []float32 {
	q, next, tile := make([]float32, rank*n), make([]float32, rank*n), make([]float32, tensor.TileFloats(rank, n))
	wide := make([]float64, rank*n)
	for i := range q {
		h := uint32(i+1) * 2654435761
		h = (h ^ h>>15) * 2246822519
		q[i] = float32(int32(h^h>>13)>>8) / (1 << 23)
	}
	for range powers {
		for r := range rank {
			for c := 0; c < n; c += tensor.BlockSlots {
				copy(tile[tensor.Tile(rank, r, c):][:tensor.BlockSlots], q[r*n+c:(r+1)*n])
			}
		}
		clear(next)
		tensor.MulAdd(next, n, tile, rank, 0, rank, matrix, n, n, 0, n, s)
		for i, x := range next {
			wide[i] = float64(x)
		}
		orthonormal(wide, n)
		for i, x := range wide {
			q[i] = float32(x)
		}
	}
	return q
}

// orthonormal makes rows of n elements orthonormal, one after another (Gram-Schmidt); one that is
// nothing new is zero afterwards.
func orthonormal(rows []float64, n int) {
	for len(rows) > 0 {
		row := rows[:n]
		rows = rows[n:]
		if square := dot(row, row); square > 0 {
			by := 1 / math.Sqrt(square)
			for i := range row {
				row[i] *= by
			}
		}
		for r := 0; r < len(rows); r += n {
			other := rows[r:][:n]
			share := dot(row, other)
			for i, x := range row {
				other[i] -= float64(share * x)
			}
		}
	}
}

// dot is four chains, added in pairs.
func dot(a, b []float64) float64 {
	var s [4]float64
	b = b[:len(a)]
	for i := 0; i+4 <= len(a); i += 4 {
		s[0] += float64(a[i] * b[i])
		s[1] += float64(a[i+1] * b[i+1])
		s[2] += float64(a[i+2] * b[i+2])
		s[3] += float64(a[i+3] * b[i+3])
	}
	return (s[0] + s[1]) + (s[2] + s[3])
}

// viewFactored is View of the chosen chunks of a head with factors.
func (s *Store) viewFactored(t *table, pages []int32, n int, rope Rope, scratch *tensor.AttnScratch) ([][]byte, int, []uint64) {
	f, m, l := t.factors, t.rule.Selector.(landmarks), s.g.Layout
	rebuild := rebuilding{f: f, coeffs: s.table(t.Layer, s.heads.Lo).factors.coeffs, m: m, l: l, rope: rope, scratch: scratch}
	blocks, slots, mask := s.viewPages(t, pages, n, scratch, func(block []byte, first int, i int) {
		page := int(pages[i])
		if at, exact := slices.BinarySearch(f.exact, pages[i]); exact {
			l.LoadPage(block, first, m.chunk, f.page(l, m, at))
			return
		}
		slot := page * m.chunk
		l.LoadValues(block, first, f.values[slot/tensor.BlockSlots], slot%tensor.BlockSlots, m.chunk)
		rebuild.add(block, first, slot)
	})
	rebuild.flush()
	return blocks, slots, mask
}

// rebuilding makes keys of coefficients, those of several chunks at once.
type rebuilding struct {
	f       *factors
	coeffs  [][]byte
	m       landmarks
	l       tensor.KVLayout
	rope    Rope
	scratch *tensor.AttnScratch
	n       int
	chunks  [togetherRebuilt]rebuilt
}

// togetherRebuilt is how many chunks are rebuilt at once: of 8 tokens, the coefficients stay in the
// first-level cache.
const togetherRebuilt = 6

// rebuilt is a chunk from a slot of the cache on, and where its keys go.
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
	rows, rank, d := r.n*r.m.chunk, r.m.rank, r.l.KDim
	floats := tensor.TileFloats(rows, rank)
	row := r.scratch.Row(floats + rows*d)
	tile, keys := row[:floats], row[floats:]
	kind, size := r.m.coeff(r.l)
	for i, c := range r.chunks[:r.n] {
		from := r.coeffs[c.slot/tensor.BlockSlots][c.slot%tensor.BlockSlots*rank*size:]
		for j := range r.m.chunk {
			for e := 0; e < rank; e += tensor.BlockSlots {
				some := min(tensor.BlockSlots, rank-e)
				tensor.Widen(tile[tensor.Tile(rows, i*r.m.chunk+j, e):][:some], from[(j*rank+e)*size:], kind)
			}
		}
	}
	clear(keys)
	tensor.MulAdd(keys, d, tile, rows, 0, rows, tensor.Floats(r.f.basis), d, rank, 0, d, r.scratch)
	for i, c := range r.chunks[:r.n] {
		for j := range r.m.chunk {
			key := keys[(i*r.m.chunk+j)*d:][:d]
			if r.rope != nil {
				cos, sin := r.rope(c.slot + j)
				tensor.RopeRotateHalf(key, cos, sin)
			}
			r.l.SetKey(c.block, c.first+j, key)
		}
	}
	r.n = 0
}

// LayerBytes is the size of what ExportLayer appends.
func LayerBytes(g Geometry, layer, prompt, tokens int, p *Policy) int {
	r := rule{Policy: g.Rule(layer, p)}
	rows := r.Slots(prompt, tokens)
	bytes := 0
	if blocks := r.factored(g, prompt); blocks > 0 {
		rows -= blocks * tensor.BlockSlots
		m := r.Selector.(landmarks)
		bytes = int(r.factorBytes(g, prompt)) + g.KVHeads*m.indexBlocks(blocks)*g.planesOf(r.Policy)[indexPlane].size
	}
	return bytes + g.KVHeads*rows*RowBytes(g, r.Policy)
}

// indexBlocks are those with landmarks of so many blocks of rows.
func (m landmarks) indexBlocks(blocks int) int { return (blocks + m.chunk - 1) / m.chunk }

// ExportLayer appends all that the owner's store has of one layer for its first `tokens` tokens, to
// move or copy the sequence to another owner: of each head its rows, or its factors and the rows behind.
func (s *Store) ExportLayer(dst []byte, layer, tokens int) []byte {
	for head := s.heads.Lo; head < s.heads.Hi; head++ {
		t := s.table(layer, head)
		if f := t.factors; f != nil {
			for _, b := range t.factorPieces() {
				dst = append(dst, b...)
			}
			for i := range cap(f.exact) {
				chunk := int32(-1)
				if i < len(f.exact) {
					chunk = f.exact[i]
				}
				dst = binary.LittleEndian.AppendUint32(dst, uint32(chunk))
			}
		}
		dst = s.ExportSlots(dst, layer, head, t.firstRow(), t.rule.Slots(s.prompt, tokens))
	}
	return dst
}

// firstRow is the first slot whose row a head has.
func (t *table) firstRow() int {
	if t.factors == nil {
		return 0
	}
	return t.factors.blocks * tensor.BlockSlots
}

// pieces is the memory of a head's factors.
func (f *factors) pieces() [][]byte {
	return append(append(append(slices.Clone(f.coeffs), f.basis), f.values...), f.pages...)
}

// factorPieces is that memory, and that of the landmarks.
func (t *table) factorPieces() [][]byte {
	return append(t.factors.pieces(), t.planes[indexPlane].blocks[:t.rule.Selector.(landmarks).indexBlocks(t.factors.blocks)]...)
}

// ImportLayer puts what ExportLayer gave into a store that OpenMoved prepared. Errors wrap ErrRows.
func (s *Store) ImportLayer(layer int, in []byte) error {
	if layer < 0 || layer >= s.g.Layers || s.pending == 0 {
		return fmt.Errorf("%w: layer %d of %d of a store with %d tokens to come", ErrRows, layer, s.g.Layers, s.pending)
	}
	if want := LayerBytes(s.g, layer, s.prompt, s.pending, s.policy); len(in) != want {
		return fmt.Errorf("%w: layer %d has %d bytes, want %d", ErrRows, layer, len(in), want)
	}
	for head := s.heads.Lo; head < s.heads.Hi; head++ {
		t := s.table(layer, head)
		if f := t.factors; f != nil {
			for _, b := range t.factorPieces() {
				in = in[copy(b, in):]
			}
			f.exact = f.exact[:0]
			each := tensor.BlockSlots / t.rule.Selector.(landmarks).chunk
			for last, i := int32(-1), 0; i < cap(f.exact); i, in = i+1, in[4:] {
				chunk := int32(binary.LittleEndian.Uint32(in))
				switch {
				case chunk == -1:
				case chunk <= last || int(chunk) >= f.blocks*each || len(f.exact) < i:
					return fmt.Errorf("%w: layer %d, head %d: chunk %d is exact behind %d, of %d", ErrRows, layer, head, chunk, last, f.blocks*each)
				default:
					f.exact, last = append(f.exact, chunk), chunk
				}
			}
			for slot := range t.firstRow() {
				t.filled[slot/64] |= 1 << (slot % 64)
			}
			t.n = max(t.n, t.firstRow())
			t.indexed = t.firstRow()
		}
		rows := (t.rule.Slots(s.prompt, s.pending) - t.firstRow()) * RowBytes(s.g, t.rule)
		if err := s.Import(layer, head, t.firstRow(), in[:rows]); err != nil {
			return err
		}
		in = in[rows:]
	}
	return nil
}
