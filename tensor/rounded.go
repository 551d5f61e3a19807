package tensor

import (
	"fmt"
	"unsafe"
)

// Tokens of quantised products, rounded by whoever has them. A product rounds its
// tokens block by block, so a block may be rounded before it is sent: a third of the
// bytes, and once instead of on every receiver.

// RoundedBytes is the size of one token of cols columns, which are whole blocks,
// as Round leaves it. A block's part of it is RoundedBytes(BlockWidth).
func RoundedBytes(cols int) int { return cols / BlockWidth * recordBytes }

// Round rounds n tokens x[t*ldx:] of cols columns, whole blocks, for products with
// weights of a quantised type: dst[t*ld:] gets RoundedBytes(cols). NaN and infinities
// show in the product, as in MatMul. dst lies at a multiple of 4 bytes, and so does ld.
func (p *Pool) Round(dst []byte, ld int, dt DType, x []float32, ldx, cols, n int) {
	size := RoundedBytes(cols)
	switch {
	case !Quantised(dt) || cols%BlockWidth != 0:
		panic(fmt.Sprintf("tensor: Round of %d columns for %v", cols, dt))
	case n == 0 || cols == 0:
		return
	case ldx < cols || len(x) < (n-1)*ldx+cols || ld < size || len(dst) < (n-1)*ld+size:
		panic(fmt.Sprintf("tensor: Round of %d tokens and %d columns from %d elements, stride %d, to %d bytes, stride %d", n, cols, len(x), ldx, len(dst), ld))
	}
	start := recordStartOf(dt)
	if n < manyTokens {
		for t := range n {
			active.quant(dst[t*ld:][:size], x[t*ldx:][:cols], start)
		}
		return
	}
	p.Run(n, func(t int) { active.quant(dst[t*ld:][:size], x[t*ldx:][:cols], start) })
}

// MatMulRounded is MatMulMany of quantised weights with tokens that Round has rounded
// for their type: token t lies at x[t*ld:]. The bits are those of MatMulMany.
func (p *Pool) MatMulRounded(products []Product, x []byte, ld, n int) {
	if len(products) == 0 {
		return
	}
	if len(products) > maxProducts {
		panic(fmt.Sprintf("tensor: MatMulRounded of %d matrices, at most %d", len(products), maxProducts))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	m, w := &p.mat, products[0].W
	m.setAll(products, n)
	size := RoundedBytes(w.Cols)
	switch {
	case !Quantised(w.Type) || w.Cols%BlockWidth != 0:
		panic(fmt.Sprintf("tensor: MatMulRounded of %d columns of %v", w.Cols, w.Type))
	case n == 0 || m.rows() == 0 || size == 0:
		return
	case ld < size || ld%4 != 0 || len(x) < (n-1)*ld+size:
		panic(fmt.Sprintf("tensor: MatMulRounded of %d tokens and %d columns from %d bytes, stride %d", n, w.Cols, len(x), ld))
	}
	m.n, m.from, m.stride = n, unsafe.Pointer(&x[0]), ld
	p.multiply()
}
