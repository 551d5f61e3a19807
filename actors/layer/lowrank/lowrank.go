// Package lowrank multiplies the rows of a step by the factors of their LoRA adapters. A row x of an
// adapter gets y += B (s (A x)) after the product W x of a matrix; other rows are not touched.
//
// A x and B t are contractions like all others: the units and the chains of package tensor, with the
// rank padded with zeros to whole blocks. s (A x) is rounded once, and so is the sum with y. So the
// bits of a row depend on neither its neighbours nor the cut of the matrices.
package lowrank

import "github.com/shoal-llm/shoal/internal/engine/tensor"

// Matrix names a matrix of a layer that an adapter can change.
type Matrix uint8

// The matrices of a layer.
const (
	Q Matrix = iota
	QGate
	K
	V
	O
	Gate
	Up
	Down
	Matrices // number of matrices
)

// Pair is the part of a matrix's factors that a socket holds. A is whole, or has the columns that the
// socket has of W. B has the rows that the socket has of W. Either is nil if it has none.
type Pair struct {
	A     *tensor.Weight // (rank, columns of W)
	B     *tensor.Weight // (rows of W, Padded(rank))
	Rank  int
	Scale float32
	Fused bool // other matrices of the layer have the same A
}

// Padded returns the number of columns of B: the rank, padded to whole blocks.
func Padded(rank int) int {
	return (rank + tensor.BlockWidth - 1) / tensor.BlockWidth * tensor.BlockWidth
}

// Layer has the pairs of one layer; nil: the adapter does not change the matrix.
type Layer [Matrices]*Pair

// Adapter is the part of an adapter that a socket holds.
type Adapter struct {
	Key    string // identity; decides the order of rows in a step
	Layers []Layer
	Memory *tensor.Weight // memory of all factors
}

// Bytes returns the memory of the factors.
func (a *Adapter) Bytes() int64 { return a.Memory.Bytes() }

// Close frees the factors.
func (a *Adapter) Close() error { return a.Memory.Close() }

// Rows are the rows [Lo, Hi) of a step, which have one adapter.
type Rows struct {
	Adapter *Adapter
	Lo, Hi  int
}

// Append adds n rows from lo on to a list in the order of rows. Rows without an adapter are left out,
// and adjacent rows of one adapter are joined.
func Append(list []Rows, a *Adapter, lo, n int) []Rows {
	if a == nil || n == 0 {
		return list
	}
	if last := len(list) - 1; last >= 0 && list[last].Adapter == a && list[last].Hi == lo {
		list[last].Hi += n
		return list
	}
	return append(list, Rows{a, lo, lo + n})
}
