package launch

import (
	"errors"
	"fmt"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/cuda"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
)

// Weight is a matrix (Rows, Cols) on a card, in the layout of [Pack]. Data and Scales are two
// allocations; float types have no scales.
type Weight struct {
	Type         tensor.DType // Q8_0, Q4_0, BF16, F16, F32
	Data, Scales cuda.Pointer
	Rows, Cols   int // Cols is a multiple of 32

	// The units of the columns that the weight holds, as of tensor.NewWeightUnits: Cols are the
	// columns of all units. Both 0: all.
	UnitLo, UnitHi int
}

// Units returns the units that the weight holds.
func (w Weight) Units() tensor.Span {
	if w.UnitHi == 0 {
		return tensor.Span{Lo: 0, Hi: tensor.Units(w.Cols)}
	}
	return tensor.Span{Lo: w.UnitLo, Hi: w.UnitHi}
}

// HeldCols returns the number of columns of the units.
func (w Weight) HeldCols() int {
	u := w.Units()
	return tensor.UnitsSpan(w.Cols, u.Lo, u.Hi).Len()
}

// Nodes returns the nodes of the sum tree that the units cover.
func (w Weight) Nodes() []tensor.Span {
	u := w.Units()
	return tensor.Subtrees(u.Lo, u.Hi, tensor.Units(w.Cols))
}

// Product is tensor.Pool.MatMul of N tokens: sums Y[t*LdY+r] over the columns of weight row r. Then
// it adds Bias (Rows), then Residual[t*LdY+r]; null: none. Residual may be Y.
//
// Quantized weights multiply Rounded; float weights multiply X, (N, Cols) float32. If the weight has only
// some of the units, X has only their columns. If the units cover several nodes of the sum tree,
// Y has the sums of each: node i at Y[i*N*LdY:], as of tensor.Pool.MatMulPartial. Bias and Residual
// are 0 then.
type Product struct {
	W              Weight
	X              cuda.Pointer
	Rounded        Rounded
	N              int
	Y              cuda.Pointer
	LdY            int
	Bias, Residual cuda.Pointer // or 0
	Tiled          bool         // use the kernel for many tokens, however few there are
	local          bool         // the kernel for many tokens keeps its sums in local memory
}

// A tiled product needs work for the multiprocessors of a card: thread blocks of some panels and
// tokens.
const (
	tiledPanels, tiledTokens = 8, 64
	tiledBlocks              = 128
	tiledLeast               = 33 // minimum number of tokens: with fewer, half of a block would be idle
	// treeBytes is the memory of two levels of the tree of sums: 32 sums of 256 threads.
	treeBytes = 2 * 32 * 256 * 4
)

func (o Product) tiled() bool {
	return kernel.Quantized(o.W.Type) &&
		(o.Tiled || o.N >= tiledLeast && ceil(ceil(o.W.Rows, PanelRows), tiledPanels)*ceil(o.N, tiledTokens) >= tiledBlocks)
}

func (o Product) small() Operation {
	o.local = true
	return o
}

func (o Product) Calls() ([]Call, error) {
	if err := wholeBlocks("a product", o.W.Cols); err != nil {
		return nil, err
	}
	if o.N == 0 || o.W.Rows == 0 {
		return nil, nil
	}
	panels, all, u := ceil(o.W.Rows, PanelRows), tensor.Units(o.W.Cols), o.W.Units()
	if u.Lo < 0 || u.Hi > all || u.Len() < 1 {
		return nil, fmt.Errorf("launch: units [%d,%d) of %d", u.Lo, u.Hi, all)
	}
	starts := uint32(0) // bit i: a node begins at unit i of the weight
	for _, n := range o.W.Nodes() {
		starts |= 1 << (n.Lo - u.Lo)
	}
	if starts != 1 && (o.Bias != null || o.Residual != null) {
		return nil, errors.New("launch: a bias or a residual for the nodes of a sum")
	}
	held := tensor.UnitsSpan(o.W.Cols, u.Lo, u.Hi)
	after := []any{o.Y, uint32(o.LdY), o.Bias, o.Residual, uint32(o.W.Rows), uint64(o.N) * uint64(o.LdY),
		uint32(u.Lo), uint32(u.Len()), uint32(all), uint32(o.W.Cols / block), starts, uint32(held.Lo / block),
		uint32(held.Len() / block), uint32(o.N)}
	name := map[tensor.DType]string{tensor.Q8_0: "q8", tensor.Q4_0: "q4", tensor.BF16: "bf16", tensor.F16: "f16", tensor.F32: "f32"}[o.W.Type]
	if name == "" {
		return nil, fmt.Errorf("launch: a product of %v weights", o.W.Type)
	}
	grid, args := cuda.Grid{X: panels, Threads: 512}, []any{o.W.Data, o.W.Scales, o.Rounded.Bytes, o.Rounded.Scales}
	tiles := []int{1, 8, 16, 32, 64} // tokens of a block
	if !kernel.Quantized(o.W.Type) {
		tiles, args, grid.Threads = []int{1, 8}, []any{o.W.Data, o.X}, 256
	}
	tile := tiles[len(tiles)-1]
	for _, n := range slices.Backward(tiles) {
		if n >= o.N {
			tile = n
		}
	}
	name += "_product"
	if o.tiled() {
		grid, name = cuda.Grid{X: ceil(panels, tiledPanels), Y: ceil(o.N, tiledTokens), Threads: 256}, name+"_tiled"
		if !o.local {
			grid.Shared, name = treeBytes, name+"_shared"
		}
		return []Call{{name, grid, append(args, after...)}}, nil
	}
	if tile > 1 {
		name += fmt.Sprintf("_%d", tile)
	}
	grid.Y = ceil(o.N, tile)
	return []Call{{name, grid, append(args, after...)}}, nil
}
