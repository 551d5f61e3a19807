package tensor

import (
	"fmt"
	"math"
	"slices"
	"testing"
)

// PutRun equals Put row by row, and saves the previous rows, on every implementation, for runs of
// any length at any slot.
func TestPutRun(t *testing.T) {
	for _, l := range []KVLayout{{Type: F32, KDim: 8, VDim: 16}, {Type: F32, KDim: 24, VDim: 40},
		{Type: BF16, KDim: 8, VDim: 8}, {Type: BF16, KDim: 64, VDim: 24},
		{Type: BF16, KDim: 88, VDim: 32}, {Type: Int8, KDim: 24, VDim: 16}, {Type: BF16, KDim: 48, VDim: 32, Latent: true}} {
		t.Run(fmt.Sprint(l), func(t *testing.T) {
			forEach(t, func(t *testing.T) {
				r := rng(11)
				for range 200 {
					slot := r.IntN(BlockSlots)
					n := r.IntN(BlockSlots-slot) + 1
					at := r.IntN(BlockSlots - n + 1)
					ldk, ldv := l.KDim+r.IntN(3), l.VDim+r.IntN(3)
					k, v := normal(r, n*ldk), normal(r, n*ldv)
					k[0], v[0], v[n*ldv-1-(ldv-l.VDim)] = float32(math.NaN()), float32(math.Inf(-1)), math.Float32frombits(3)
					block, rows := make([]byte, l.BlockBytes()), make([]byte, l.BlockBytes())
					for s := range BlockSlots {
						l.Put(block, s, normal(r, l.KDim), normal(r, l.VDim))
					}
					before, want, saved := slices.Clone(block), slices.Clone(block), slices.Clone(rows)
					for i := range n {
						l.SaveRow(saved, at+i, want, slot+i)
						l.Put(want, slot+i, k[i*ldk:], v[i*ldv:])
					}
					l.PutRun(block, slot, n, k, ldk, v, ldv, rows, at)
					if !slices.Equal(block, want) || !slices.Equal(rows, saved) {
						t.Fatalf("run of %d from slot %d: block right %v, saved rows right %v", n, slot, slices.Equal(block, want), slices.Equal(rows, saved))
					}
					for i := range n {
						other := make([]byte, l.BlockBytes())
						l.MoveRow(other, 63, rows, at+i)
						l.LoadRow(block, slot+i, other, 63)
					}
					if !slices.Equal(block, before) {
						t.Fatalf("run of %d from slot %d: rows have changed", n, slot)
					}
				}
			})
		})
	}
}
