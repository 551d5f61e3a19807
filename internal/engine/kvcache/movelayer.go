package kvcache

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// LayerBytes is the size of what ExportLayer appends.
func LayerBytes(g Geometry, layer, prompt, tokens int, p *Policy) int {
	r := rule{Policy: g.Rule(layer, p)}
	rows := r.Slots(prompt, tokens)
	bytes := 0
	if blocks := r.factored(g, prompt); blocks > 0 {
		rows -= blocks * tensor.BlockSlots
		index := g.planesOf(r.Policy, 0)[indexPlane]
		bytes = int(r.factorBytes(g, prompt)) + g.KVHeads*index.room(blocks*tensor.BlockSlots)*index.size
	}
	return bytes + g.KVHeads*rows*RowBytes(g, layer, r.Policy)
}

// ExportLayer appends the contents of one layer of the owner's store, up to the given number of
// tokens, to move or copy the sequence to another owner. For each head these are its rows, or its
// factors and the rows after them.
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

// firstRow is the first slot of which a head has the row.
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

// factorPieces is that memory and the landmarks' memory.
func (t *table) factorPieces() [][]byte {
	index := &t.planes[indexPlane]
	return append(t.factors.pieces(), index.blocks[:index.room(t.firstRow())]...)
}

// ImportLayer reads the result of ExportLayer into a store that OpenMoved prepared. Errors wrap
// ErrRows.
func (s *Store) ImportLayer(layer int, in []byte) error {
	if layer < 0 || layer >= s.g.Layers || s.pending == 0 {
		return fmt.Errorf("%w: layer %d of %d of a store with %d pending tokens", ErrRows, layer, s.g.Layers, s.pending)
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
			each := tensor.BlockSlots / t.rule.Selector.Page()
			for last, i := int32(-1), 0; i < cap(f.exact); i, in = i+1, in[4:] {
				chunk := int32(binary.LittleEndian.Uint32(in))
				switch {
				case chunk == -1:
				case chunk <= last || int(chunk) >= f.blocks*each || len(f.exact) < i:
					return fmt.Errorf("%w: layer %d, head %d: exact chunk %d follows %d, of %d", ErrRows, layer, head, chunk, last, f.blocks*each)
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
		rows := (t.rule.Slots(s.prompt, s.pending) - t.firstRow()) * RowBytes(s.g, layer, t.rule)
		if err := s.Import(layer, head, t.firstRow(), in[:rows]); err != nil {
			return err
		}
		in = in[rows:]
	}
	return nil
}
