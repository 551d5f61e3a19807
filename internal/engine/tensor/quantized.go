package tensor

import (
	"fmt"
	"unsafe"

	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
)

// Activations of quantized products that the caller has quantized. A product quantizes its tokens
// block by block, so a block may be quantized before it is sent: a third of the bytes, and once
// instead of on every receiver.

// QuantizedBytes returns the size of one quantized token of cols columns, in whole blocks. A block's
// part of it is QuantizedBytes(BlockWidth).
func QuantizedBytes(cols int) int { return cols / BlockWidth * kernel.QuantBlockBytes }

// Quantize quantizes n tokens x[t*ldx:] of cols columns, in whole blocks, for products with weights
// of a quantized type: dst[t*ld:] gets QuantizedBytes(cols). NaN and infinities show in the
// product, as in MatMul. dst and ld must be multiples of 4 bytes.
func Quantize(dst []byte, ld int, dt DType, x []float32, ldx, cols, n int) {
	size := QuantizedBytes(cols)
	switch {
	case !kernel.Quantized(dt) || cols%BlockWidth != 0:
		panic(fmt.Sprintf("tensor: Quantize of %d columns for %v", cols, dt))
	case n == 0 || cols == 0:
		return
	case ldx < cols || len(x) < (n-1)*ldx+cols || ld < size || len(dst) < (n-1)*ld+size:
		panic(fmt.Sprintf("tensor: Quantize of %d tokens and %d columns from %d elements, stride %d, to %d bytes, stride %d",
			n, cols, len(x), ldx, len(dst), ld))
	}
	start := quantBlockStartOf(dt)
	for t := range n {
		kernel.Active.Quantize(dst[t*ld:][:size], x[t*ldx:][:cols], start)
	}
}

// MatMulQuantized is MatMulMany for quantized weights with tokens that Quantize has quantized for
// their type: token t is at x[t*ld:]. The bits equal those of MatMulMany.
func (p *Pool) MatMulQuantized(products []Product, x []byte, ld, n int) {
	if len(products) == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mat.setAll(products, n)
	p.matmulQuantized(x, ld, n)
}

// MatMulPartialQuantized is MatMulPartial with tokens that Quantize has quantized for the weight's type:
// x[t*ld] is in the first block of the weight's units. The bits equal those of MatMulPartial.
func (p *Pool) MatMulPartialQuantized(y [][]float32, w *Weight, x []byte, ld, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mat.setPartial(y, w, n)
	p.matmulQuantized(x, ld, n)
}

// matmulQuantized multiplies the jobs that are set by quantized tokens x.
func (p *Pool) matmulQuantized(x []byte, ld, n int) {
	m := &p.mat
	w := m.jobs[0].w
	k, size := w.span.Len(), QuantizedBytes(w.span.Len())
	switch {
	case !kernel.Quantized(w.Type) || k%BlockWidth != 0:
		panic(fmt.Sprintf("tensor: MatMulQuantized of %d columns of %v", k, w.Type))
	case n == 0 || m.rows() == 0 || size == 0:
		m.then = nil
		return
	case ld < size || ld%4 != 0 || len(x) < (n-1)*ld+size:
		panic(fmt.Sprintf("tensor: MatMulQuantized of %d tokens and %d columns from %d bytes, stride %d", n, k, len(x), ld))
	}
	m.n, m.from, m.stride = n, unsafe.Pointer(&x[0]), ld
	p.multiply()
}
