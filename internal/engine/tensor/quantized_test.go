package tensor

import (
	"bytes"
	"math"
	"testing"
)

// Tokens that were quantized before, in pieces of whole blocks, give the bits of MatMulMany.
func TestMatMulQuantized(t *testing.T) {
	p := NewPool(2)
	defer p.Close()
	forEach(t, func(t *testing.T) {
		r := rng(31)
		for _, c := range []struct{ rows, k, n int }{{16, 32, 1}, {17, 64, 2}, {70, 96, 9}, {130, 544, 13}, {48, 2048, 100}} {
			for _, dt := range []DType{Q8_0, Q4_0, IQ4_NL, Int4, MXFP4} {
				a := newWeight(t, dt, normal(r, c.rows*c.k), c.rows, c.k, 0, Units(c.k))
				b := newWeight(t, dt, normal(r, c.rows*c.k), c.rows, c.k, 0, Units(c.k))
				ldx, ld, ldy := c.k+5, QuantizedBytes(c.k)+12, 2*c.rows+3
				x := normal(r, c.n*ldx)
				if c.n > 1 {
					x[ldx+3] = float32(math.NaN())
				}
				products := func(y []float32) []Product {
					return []Product{{Y: y, LdY: ldy, W: a, R1: c.rows}, {Y: y[c.rows:], LdY: ldy, W: b, R1: c.rows}}
				}
				want, got := make([]float32, c.n*ldy), make([]float32, c.n*ldy)
				p.MatMulMany(products(want), x, ldx, c.n)

				quantized := make([]byte, c.n*ld)
				cut := c.k / BlockWidth / 2 * BlockWidth
				Quantize(quantized, ld, dt, x, ldx, cut, c.n)
				Quantize(quantized[QuantizedBytes(cut):], ld, dt, x[cut:], ldx, c.k-cut, c.n)
				p.MatMulQuantized(products(got), quantized, ld, c.n)
				for i := range want {
					if math.Float32bits(got[i]) != math.Float32bits(want[i]) && (got[i] == got[i] || want[i] == want[i]) {
						t.Fatalf("%v %+v: element %d is %v, want %v", dt, c, i, got[i], want[i])
					}
				}
				for tok := range c.n {
					if !bytes.Equal(quantized[tok*ld+QuantizedBytes(c.k):(tok+1)*ld], make([]byte, 12)) {
						t.Fatalf("%v %+v: wrote beyond the columns", dt, c)
					}
				}
			}
		}
	})
}

// Tokens that were quantized before, of all columns, give the bits of MatMulPartial for any units.
func TestMatMulPartialQuantized(t *testing.T) {
	p := NewPool(2)
	defer p.Close()
	forEach(t, func(t *testing.T) {
		r := rng(37)
		for _, c := range []struct{ rows, k, n, lo, hi int }{{17, 64, 2, 1, 2}, {70, 544, 9, 3, 14}, {48, 2048, 100, 0, 7}, {16, 96, 3, 1, 1}} {
			for _, dt := range []DType{Q8_0, Q4_0, IQ4_NL, Int4, MXFP4} {
				w := newWeight(t, dt, normal(r, c.rows*c.k), c.rows, c.k, c.lo, c.hi)
				x := normal(r, c.n*c.k)
				parts := func() (y [][]float32) {
					for range Subtrees(c.lo, c.hi, Units(c.k)) {
						y = append(y, make([]float32, c.n*c.rows))
					}
					return y
				}
				want, got := parts(), parts()
				p.MatMulPartial(want, w, x[w.Span().Lo:], c.k, c.n)
				ld := QuantizedBytes(c.k)
				quantized := make([]byte, c.n*ld)
				Quantize(quantized, ld, dt, x, c.k, c.k, c.n)
				p.MatMulPartialQuantized(got, w, quantized[QuantizedBytes(w.Span().Lo):], ld, c.n)
				for node := range want {
					for i := range want[node] {
						if math.Float32bits(got[node][i]) != math.Float32bits(want[node][i]) {
							t.Fatalf("%v %+v: element %d of node %d is %v, want %v", dt, c, i, node, got[node][i], want[node][i])
						}
					}
				}
			}
		}
	})
}
