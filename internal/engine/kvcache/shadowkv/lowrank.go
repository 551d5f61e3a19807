package shadowkv

import (
	"fmt"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
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

// lowRank is the PromptIndex of keys=lowrank.
type lowRank struct {
	landmarks
	rank int
}

// Fits implements kvcache.PromptIndex.
func (x lowRank) Fits(g kvcache.Geometry) error {
	switch {
	case g.Layout.Latent:
		return fmt.Errorf("%w: keys=lowrank is for models that keep keys: this one keeps a latent row for all heads, which is of low rank "+
			"already; use keys=exact", kvcache.ErrPolicy)
	case x.rank >= g.KVHeads*g.Layout.KDim:
		return fmt.Errorf("%w: keys=lowrank,rank=%d is not below the %d elements of this model's keys (%d heads of %d): give a lower rank, or "+
			"keys=exact", kvcache.ErrPolicy, x.rank, g.KVHeads*g.Layout.KDim, g.KVHeads, g.Layout.KDim)
	}
	return nil
}

// Plan implements kvcache.PromptIndex.
func (x lowRank) Plan(g kvcache.Geometry, prompt int) (p kvcache.IndexPlan) {
	p.Replaced = x.marked(prompt) * x.chunk / tensor.BlockSlots
	if p.Replaced == 0 {
		return p
	}
	coeffs, basis, values := x.sizes(g.Layout)
	p.Bytes = int64(p.Replaced*coeffs) + int64(g.KVHeads)*int64(basis+p.Replaced*values+x.exactBlocks()*g.Layout.BlockBytes()+4*x.outliers)
	p.Read = basis + x.chunks*x.chunk*(coeffs-g.Layout.BlockBytes()+values)/tensor.BlockSlots
	return p
}

// Prepare implements kvcache.PromptIndex.
func (lowRank) Prepare(*kvcache.Observation, *kvcache.Store, int, kvcache.Run) {}

// Arrange implements kvcache.PromptIndex. It is not called: rows stay in text order.
func (lowRank) Arrange(*kvcache.Statistics) kvcache.Kept { return kvcache.Kept{} }

// sizes returns the sizes of the blocks of factors in bytes.
func (x lowRank) sizes(l tensor.KVLayout) (coeffs, basis, values int) {
	_, size := coeffType(l)
	return tensor.BlockSlots * x.rank * size, 4 * x.rank * l.KDim, l.ValueBytes(tensor.BlockSlots)
}

func (x lowRank) exactBlocks() int {
	return (x.outliers*x.chunk + tensor.BlockSlots - 1) / tensor.BlockSlots
}

// coeffType returns the type of coefficients, and its size.
func coeffType(l tensor.KVLayout) (tensor.DType, int) {
	if l.Type == tensor.F32 {
		return tensor.F32, 4
	}
	return tensor.BF16, 2
}

// factored is the index of a store: the factors of its layers.
type factored struct {
	lowRank
	s      *kvcache.Store
	l      tensor.KVLayout
	blocks int          // replaced blocks of a head
	layers [][]*factors // [layer][head]; nil: the layer keeps its rows
	moved  bool
}

// factors replace the first blocks of one head.
type factors struct {
	coeffs [][]byte // [blocks][BlockSlots][rank], for all heads of the layer; in the first head
	basis  []byte   // [rank][KDim] float32
	values [][]byte // [blocks], page by page; empty when a file has them
	exact  []int32  // chunks with exact keys, ascending
	pages  [][]byte // the rows of these chunks
	want   []int32  // pages of the running selection that are in a file; the store charges them
}

// Open implements kvcache.PromptIndex.
func (x lowRank) Open(s *kvcache.Store, moved bool) (kvcache.StoreIndex, error) {
	g := s.Geometry()
	f := &factored{lowRank: x, s: s, l: g.Layout, blocks: x.Plan(g, s.Prompt()).Replaced, layers: make([][]*factors, g.Layers), moved: moved}
	if f.blocks == 0 {
		return f, nil
	}
	coeffs, basis, values := x.sizes(g.Layout)
	for layer := range f.layers {
		for head := 0; head < g.KVHeads && s.Rule(layer).Index != nil; head++ {
			if err := s.Arena().Charge(4 * int64(x.outliers)); err != nil {
				f.Release()
				return nil, err
			}
			h := &factors{exact: make([]int32, 0, x.outliers)}
			f.layers[layer] = append(f.layers[layer], h)
			var err error
			get := func(size, n int) (got [][]byte) {
				if err == nil {
					got, err = s.Arena().Alloc(size, n)
				}
				return got
			}
			h.values, h.pages = get(values, f.blocks), get(g.Layout.BlockBytes(), x.exactBlocks())
			if one := get(basis, 1); err == nil {
				h.basis = one[0]
			}
			if head == 0 {
				h.coeffs = get(coeffs, f.blocks)
			}
			if err != nil {
				f.Release()
				return nil, err
			}
		}
	}
	return f, nil
}

// pieces returns the memory of a head's factors.
func (f *factors) pieces() [][]byte {
	all := append(slices.Clone(f.coeffs), f.basis)
	return append(append(all, f.values...), f.pages...)
}

// Release implements kvcache.StoreIndex.
func (f *factored) Release() {
	for _, heads := range f.layers {
		for _, h := range heads {
			f.s.Arena().Release(slices.DeleteFunc(h.pieces(), func(b []byte) bool { return b == nil }))
			f.s.Arena().Uncharge(4 * int64(f.outliers))
		}
	}
	f.layers = nil
}

// Bytes implements kvcache.StoreIndex.
func (f *factored) Bytes() (n int64) {
	for _, heads := range f.layers {
		for _, h := range heads {
			n += 4 * int64(f.outliers)
			for _, b := range h.pieces() {
				n += int64(len(b))
			}
		}
	}
	return n
}
