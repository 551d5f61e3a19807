package tensor

import (
	"fmt"

	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
)

// The grains of the canonical arithmetic. They determine every result's bits and every message
// between nodes, so they are constants, not settings.
const (
	MaxUnits = 16 // maximum number of runs of blocks of one axis that can have different owners
	RowGrain = 16 // output rows that are never split
)

// Span is the half-open range [Lo, Hi).
type Span struct{ Lo, Hi int }

func (s Span) Len() int { return s.Hi - s.Lo }

// Intersect returns the common part of two ranges, an empty span if there is none.
func (s Span) Intersect(o Span) Span {
	lo, hi := max(s.Lo, o.Lo), min(s.Hi, o.Hi)
	return Span{lo, max(lo, hi)}
}

// Units returns the number of units of a contraction axis of k elements.
func Units(k int) int {
	return min(MaxUnits, (k+BlockWidth-1)/BlockWidth)
}

// UnitSpan returns the element range of unit u of an axis of k elements: whole blocks, of which only the
// last one of the axis may be short.
func UnitSpan(k, u int) Span { return UnitsSpan(k, u, u+1) }

// UnitsSpan returns the element range of the units [lo, hi) of an axis of k elements.
func UnitsSpan(k, lo, hi int) Span {
	blocks, units := (k+BlockWidth-1)/BlockWidth, Units(k)
	if units == 0 {
		return Span{}
	}
	return Span{min(k, lo*blocks/units*BlockWidth), min(k, hi*blocks/units*BlockWidth)}
}

// TreeSplit returns where the tree node [lo, hi), of at least two leaves, divides: the left child has
// the largest power of two of leaves that leaves the right child at least one.
func TreeSplit(lo, hi int) int {
	p := 1
	for 2*p < hi-lo {
		p *= 2
	}
	return lo + p
}

// Subtrees returns the maximal nodes of the sum tree over units leaves that together cover exactly
// the leaves [lo, hi), in order. A socket that owns these units computes one partial sum per node.
func Subtrees(lo, hi, units int) []Span {
	if lo < 0 || hi > units || lo > hi {
		panic(fmt.Sprintf("tensor: units [%d,%d) outside of [0,%d)", lo, hi, units))
	}
	return subtrees(nil, lo, hi, 0, units)
}

// Leaves returns the leaf nodes of a tree with n units.
func Leaves(n int) []Span {
	out := make([]Span, n)
	for i := range out {
		out[i] = Span{i, i + 1}
	}
	return out
}

func subtrees(out []Span, lo, hi, a, b int) []Span {
	switch {
	case lo >= b || hi <= a || lo >= hi:
		return out
	case lo <= a && b <= hi:
		return append(out, Span{a, b})
	}
	mid := TreeSplit(a, b)
	return subtrees(subtrees(out, lo, hi, a, mid), lo, hi, mid, b)
}

// CombineTree finishes the sum tree over [0, units). parts[i] is the value of the tree node
// nodes[i] (from Subtrees). The nodes tile [0, units) in order, and all parts have at least
// len(dst) elements. dst may alias one of the parts. It does not allocate.
func CombineTree(dst []float32, nodes []Span, parts [][]float32, units int) {
	if len(nodes) != len(parts) {
		panic(fmt.Sprintf("tensor: %d tree nodes but %d parts", len(nodes), len(parts)))
	}
	var acc combineChunk
	for off := 0; off < len(dst); off += len(acc) {
		n := min(len(acc), len(dst)-off)
		if used := combine(&acc, nodes, parts, 0, 0, units, off, n); used != len(nodes) {
			panic(fmt.Sprintf("tensor: nodes %v do not tile the %d units in order", nodes, units))
		}
		copy(dst[off:off+n], acc[:n])
	}
}

type combineChunk [256]float32

// combine computes the elements [off, off+n) of node [a, b) into acc, and returns the index of the
// first unused part.
func combine(acc *combineChunk, nodes []Span, parts [][]float32, i, a, b, off, n int) int {
	if i < len(nodes) && nodes[i] == (Span{a, b}) {
		copy(acc[:n], parts[i][off:off+n])
		return i + 1
	}
	if b-a < 2 {
		panic(fmt.Sprintf("tensor: no part for unit %d among the nodes %v", a, nodes))
	}
	mid := TreeSplit(a, b)
	i = combine(acc, nodes, parts, i, a, mid, off, n)
	var right combineChunk
	i = combine(&right, nodes, parts, i, mid, b, off, n)
	kernel.AddInPlace(acc[:n], right[:n])
	return i
}

// Arithmetic is the version of docs/decisions/canonical-arithmetic.md: of the order of operations
// that determines every bit. A change of any answer's bits raises it. Processes of different
// versions do not work together, and a job does not continue under another version.
//
//	1  attention is one chain over all slots
//	2  attention is cut into runs, see RunBlocks
const Arithmetic = 2
