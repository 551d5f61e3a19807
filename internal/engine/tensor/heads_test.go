package tensor

import (
	"fmt"
	"testing"
)

// Heads that are multiplied together have the bits of heads multiplied one by one, and nothing else
// is written.
func TestMatMulHeads(t *testing.T) {
	for _, dt := range []DType{F32, BF16, Q8_0} {
		for _, c := range []struct{ heads, rows, cols, n int }{{3, 12, 32, 1}, {16, 32, 16, 5}, {5, 64, 48, 9}, {8, 512, 128, 3}} {
			r := rng(uint64(c.rows))
			ldx, sx, ldy, sy := c.heads*(c.cols+8)+3, c.cols+8, c.heads*(c.rows+4), c.rows+4
			x := normal(r, c.n*ldx)
			w := make([]*Weight, c.heads)
			for h := range w {
				var err error
				if w[h], err = NewWeight(dt, c.rows, c.cols); err != nil {
					t.Fatal(err)
				}
				defer w[h].Close()
				for row := range c.rows {
					w[h].SetRow(row, normal(r, c.cols))
				}
			}
			forEach(t, func(t *testing.T) {
				want := make([]float32, c.n*ldy)
				one := NewPool(1)
				defer one.Close()
				for h := range w {
					one.MatMul(want[h*sy:], ldy, w[h], x[h*sx:], ldx, c.n)
				}
				for _, threads := range []int{1, 3} {
					p := NewPool(threads)
					got := make([]float32, c.n*ldy)
					p.MatMulHeads(got, ldy, sy, w, x, ldx, sx, c.n)
					sameBits(t, fmt.Sprintf("%v %+v, %d threads", dt, c, threads), got, want)
					p.Close()
				}
			})
		}
	}
}
