package tensor

import "unsafe"

// Tile is where element j of row r, of rows rows, stands in what MulAdd multiplies: 64 columns of
// all rows lie together.
func Tile(rows, r, j int) int { return (j/BlockSlots*rows+r)*BlockSlots + j%BlockSlots }

// TileFloats is the size of rows rows of n columns.
func TileFloats(rows, n int) int { return (n + BlockSlots - 1) / BlockSlots * rows * BlockSlots }

// MulAdd adds to rows of out, ldo apart, the product of rows rows of p (see Tile) with m: columns
// [lo, hi) of [n][ldm]. An element is one chain of n fused multiplications and additions in the order of the
// columns of p, on every machine. lo and hi are multiples of 8.
func MulAdd(out []float32, ldo int, p []float32, all, first, rows int, m []float32, ldm, n, lo, hi int, s *AttnScratch) {
	a := &s.values
	for at := 0; at < n; at += BlockSlots {
		a.slots, a.ldv, a.ldo = uintptr(min(BlockSlots, n-at)), uintptr(4*ldm), uintptr(4*ldo)
		for r := 0; r < rows; r += a.rows {
			a.rows = min(maxTileTokens, rows-r)
			a.p = unsafe.Pointer(&p[Tile(all, first+r, at)])
			for col := lo; col < hi; col += a.cols {
				cols, f := active.pickValues(F32, hi-col, a.rows)
				a.v, a.o, a.cols = unsafe.Pointer(&m[at*ldm+col]), unsafe.Pointer(&out[r*ldo+col]), cols
				_, _, a.pf = m[(at+int(a.slots)-1)*ldm+col+cols-1], out[(r+a.rows-1)*ldo+col+cols-1], a.v
				f(a)
			}
		}
	}
	*a = valuesArgs{}
}

// Key is the key of a slot, as it is stored.
func (l KVLayout) Key(k []float32, block []byte, slot int) {
	l.check(block, slot)
	l.getKey(block, slot, block, k[:l.KDim])
}

// SetKey is the key's part of Put. Neither is of latent layouts.
func (l KVLayout) SetKey(block []byte, slot int, k []float32) {
	l.check(block, slot)
	l.putKey(block, slot, k[:l.KDim])
}

// ValueBytes is the size of the values of a block, and of their scales.
func (l KVLayout) ValueBytes() int {
	p := l.planes()
	return BlockSlots * (p[1].row + p[3].row)
}

// SaveValues copies those of a block, ValueBytes long.
func (l KVLayout) SaveValues(dst, block []byte) {
	for _, p := range [2]plane{l.planes()[1], l.planes()[3]} {
		dst = dst[copy(dst[:BlockSlots*p.row], block[p.at:]):]
	}
}

// LoadValues copies those of n slots from `from` on, which SaveValues gave, to the slots of a block
// from `to` on.
func (l KVLayout) LoadValues(block []byte, to int, src []byte, from, n int) {
	for _, p := range [2]plane{l.planes()[1], l.planes()[3]} {
		copy(block[p.at+to*p.row:][:n*p.row], src[from*p.row:])
		src = src[BlockSlots*p.row:]
	}
}

// Floats are the float32 elements that lie in b.
func Floats(b []byte) []float32 { return floats(b) }

// Widen fills x with F32 or BF16 elements of src.
func Widen(x []float32, src []byte, dt DType) {
	if dt == BF16 {
		active.widen(x, halves(src)[:len(x)])
		return
	}
	copy(x, floats(src))
}
