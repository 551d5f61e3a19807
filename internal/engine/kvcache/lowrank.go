package kvcache

import (
	"fmt"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// ShadowKV as published (arXiv 2410.21465, algorithms 1 and 2). At the end of prefill the keys of
// all heads of a layer, concatenated and before rotation, are projected on their rank leading
// directions. A token then has rank coefficients instead of its keys. A step rebuilds and rotates
// the keys of the chunks that it chooses. Exact keys remain for the outliers of the prompt, the
// rows after the last whole block of chunks with a landmark, and generated tokens. Landmarks are
// computed from the exact keys.
//
// Factors are computed once, from rows that do not depend on the cut of the prompt. A replica gets
// them with the rows. A lost cache is read again.

// factors replace the freed rows of one head: the first blocks of its prompt.
type factors struct {
	blocks int
	coeffs [][]byte // [blocks][BlockSlots][rank], for all heads of the layer; in the first head
	basis  []byte   // [rank][KDim] float32
	values [][]byte // [blocks], page by page; empty when a file has them
	exact  []int32  // chunks with exact keys, ascending
	pages  [][]byte // the rows of these chunks
	rest   [][]byte // space for the rows that stay, while they belong to another store until Seal
	given  bool     // received from another owner
}

// factored is the number of blocks of a prompt whose keys become factors.
func (p *Policy) factored(g Geometry, prompt int) int {
	if p.Factors.Rank == 0 || g.Fits(p) != nil {
		return 0
	}
	return p.Factors.Marked(prompt) * p.Selector.Page() / tensor.BlockSlots
}

// Fits returns an error that wraps ErrPolicy if a policy is not possible for caches of this shape.
func (g Geometry) Fits(p *Policy) error {
	switch rank := p.Factors.Rank; {
	case rank == 0:
		return nil
	case g.Layout.Latent:
		return fmt.Errorf("%w: keys=lowrank is for models that keep keys: this one keeps a latent row for all heads, which is of low rank already; use keys=exact", ErrPolicy)
	case rank >= g.KVHeads*g.Layout.KDim:
		return fmt.Errorf("%w: keys=lowrank,rank=%d is not below the %d elements of this model's keys (%d heads of %d): give a lower rank, or keys=exact", ErrPolicy, rank, g.KVHeads*g.Layout.KDim, g.KVHeads, g.Layout.KDim)
	}
	return nil
}

// coeffType is the type of coefficients, and its size.
func coeffType(l tensor.KVLayout) (tensor.DType, int) {
	if l.Type == tensor.F32 {
		return tensor.F32, 4
	}
	return tensor.BF16, 2
}

// factorSizes are the sizes of the blocks of factors in bytes.
func (p *Policy) factorSizes(l tensor.KVLayout) (coeffs, basis, values int) {
	_, size := coeffType(l)
	return tensor.BlockSlots * p.Factors.Rank * size, 4 * p.Factors.Rank * l.KDim, l.ValueBytes(tensor.BlockSlots)
}

func (p *Policy) exactBlocks() int { return int(blocksOf(p.Factors.Exact * p.Selector.Page())) }

// factorBytes is the size of the factors of a layer, all heads.
func (r rule) factorBytes(g Geometry, prompt int) int64 {
	blocks := r.factored(g, prompt)
	if blocks == 0 {
		return 0
	}
	coeffs, basis, values := r.factorSizes(g.Layout)
	return int64(blocks)*int64(coeffs) + int64(g.KVHeads)*(int64(basis)+int64(blocks)*int64(values)+blockBytes(g.Layout, int64(r.exactBlocks()))+4*int64(r.Factors.Exact))
}

// keyBytes is the size of a layer's rows that its factors replace.
func (r rule) keyBytes(g Geometry, prompt int) int64 {
	return blockBytes(g.Layout, int64(g.KVHeads)*int64(r.factored(g, prompt)))
}

// rebuiltBytes is what a step reads of a head's factors beyond the size of the keys that it
// rebuilds.
func (r rule) rebuiltBytes(g Geometry, prompt int) int {
	if r.factored(g, prompt) == 0 {
		return 0
	}
	coeffs, basis, values := r.factorSizes(g.Layout)
	return basis + r.Factors.Pages*r.Selector.Page()*(coeffs-g.Layout.BlockBytes()+values)/tensor.BlockSlots
}

// Adopts reports whether the owner of a sequence continues with the blocks of its prompt as they
// were read.
func (p *Policy) Adopts(g Geometry, prompt int) bool {
	return p.KeepsAll() && p.factored(g, prompt) == 0
}

// openFactors allocates the memory of factors, all or nothing. rest reports whether a table needs
// space for the rows that stay.
func (s *Store) openFactors(given bool, rest func(*table) bool) error {
	for i := range s.tables {
		t := &s.tables[i]
		blocks := t.rule.factored(s.g, s.prompt)
		if blocks == 0 {
			continue
		}
		coeffs, basis, values := t.rule.factorSizes(s.g.Layout)
		if err := s.arena.Charge(4 * int64(t.rule.Factors.Exact)); err != nil {
			s.dropFactors()
			return err
		}
		f := &factors{blocks: blocks, exact: make([]int32, 0, t.rule.Factors.Exact), given: given}
		t.factors = f
		var err error
		get := func(size, n int) (got [][]byte) {
			if err == nil {
				got, err = s.arena.Alloc(size, n)
			}
			return got
		}
		f.values, f.pages = get(values, blocks), get(s.g.Layout.BlockBytes(), t.rule.exactBlocks())
		if one := get(basis, 1); err == nil {
			f.basis = one[0]
		}
		if t.Index == s.heads.Lo {
			f.coeffs = get(coeffs, blocks)
		}
		switch {
		case given: // there are no rows to free
			t.planes[rowsPlane].blocks, t.freed = make([][]byte, blocks), blocks
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

// bytes is the memory that factors hold.
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
