package tensor

import (
	"fmt"
	"testing"
)

// TestAttendAroundIsAttend: attention on both sides has the bits of Attend with a mask, for every
// kernel.
func TestAttendAroundIsAttend(t *testing.T) {
	var s AttnScratch
	for _, l := range layouts {
		if l.KDim > 200 || small() && l.KDim > 64 {
			continue
		}
		r := rng(uint64(l.KDim))
		for _, c := range []struct{ nq, first, n, g int }{{1, 0, 1, 1}, {3, 0, 9, 2}, {20, 60, 130, 3},
			{70, 0, 70, 1}, {90, 37, 200, 4}, {33, 128, 1100, 1}, {9, 60, 69, 20}} {
			blocks := newCache(r, l, c.n)
			ldq, ldo := c.g*l.KDim+5, c.g*l.VDim+3
			q := normal(r, c.nq*ldq)
			windows := []int{0, 1, 63, 65, 100}
			if small() {
				windows = []int{0, 65}
			}
			for _, window := range windows {
				score := Score{Scale: 0.3, Cap: float32(2 * (window % 2))}
				want := make([]float32, c.nq*ldo)
				for i := range c.nq {
					valid := make([]uint64, (c.n+63)/64)
					for slot := range c.n {
						if far := slot - c.first - i; window == 0 || far < window && -far < window {
							valid[slot/64] |= 1 << (slot % 64)
						}
					}
					Attend(want[i*ldo:], q[i*ldq:], c.g, score, l, blocks, c.n, valid, &s)
				}
				forEach(t, func(t *testing.T) {
					out := make([]float32, c.nq*ldo)
					AttendAround(out, ldo, q, ldq, c.nq, c.first, c.n, window, c.g, score, l, blocks, &s)
					sameBits(t, fmt.Sprintf("%+v %+v window %d", l, c, window), out, want)
				})
			}
		}
	}
}
