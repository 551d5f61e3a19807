package tensor

import (
	"unsafe"

	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
)

// Tile returns the position of element j of row r in the layout that MulAdd reads: 64 columns of all
// rows are contiguous. rows is the number of rows.
func Tile(rows, r, j int) int { return (j/BlockSlots*rows+r)*BlockSlots + j%BlockSlots }

// TileFloats returns the size of that layout for rows of n columns.
func TileFloats(rows, n int) int { return (n + BlockSlots - 1) / BlockSlots * rows * BlockSlots }

// MulAdd adds the product of some rows of p (see Tile) with columns [lo, hi) of m [n][ldm] to rows
// of out, ldo apart. An element is one chain of n fused multiply-adds in the order of p's columns,
// on every machine. lo and hi are multiples of 8.
func MulAdd(out []float32, ldo int, p []float32, all, first, rows int, m []float32, ldm, n, lo, hi int, s *AttnScratch) {
	a := &s.values
	for at := 0; at < n; at += BlockSlots {
		a.Slots, a.LdV, a.LdO = uintptr(min(BlockSlots, n-at)), uintptr(4*ldm), uintptr(4*ldo)
		for r := 0; r < rows; r += a.Rows {
			a.Rows = min(kernel.MaxTileTokens, rows-r)
			a.P = unsafe.Pointer(&p[Tile(all, first+r, at)])
			for col := lo; col < hi; col += a.Cols {
				cols, f := kernel.Active.PickValues(F32, hi-col, a.Rows)
				a.V, a.O, a.Cols = unsafe.Pointer(&m[at*ldm+col]), unsafe.Pointer(&out[r*ldo+col]), cols
				_, _, a.Prefetch = m[(at+int(a.Slots)-1)*ldm+col+cols-1], out[(r+a.Rows-1)*ldo+col+cols-1], a.V
				f(a)
			}
		}
	}
	*a = kernel.ValuesArgs{}
}

// Floats views b as float32 elements.
func Floats(b []byte) []float32 { return floats(b) }

// Widen converts F32 or BF16 elements of src to x.
func Widen(x []float32, src []byte, dt DType) {
	if dt == BF16 {
		kernel.Active.Widen(x, halves(src)[:len(x)])
		return
	}
	copy(x, floats(src))
}
