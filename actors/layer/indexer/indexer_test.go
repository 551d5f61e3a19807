package indexer

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// The chosen slots are those of a sort by scores computed one by one, among the valid slots.
func TestChoiceIsThatOfASort(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	normal := func(n int) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(r.NormFloat64())
		}
		return x
	}
	var s Scratch
	for _, c := range []struct{ heads, dim, n, k int }{{1, 8, 9, 3}, {4, 24, 64, 10}, {9, 72, 65, 64}, {64, 128, 300, 17}} {
		rows := Rows{Layout: tensor.KVLayout{Type: tensor.F32, KDim: 32 + c.dim, VDim: 16, Latent: true}, At: 32, Dim: c.dim}
		var blocks [][]byte
		var keys [][]float32
		for slot := range c.n {
			if slot%tensor.BlockSlots == 0 {
				blocks = append(blocks, make([]byte, rows.Layout.BlockBytes()))
			}
			k := normal(rows.Layout.KDim)
			if slot%5 == 4 { // a tie with the slot before
				copy(k[32:], keys[slot-1])
			}
			keys = append(keys, k[32:])
			rows.Layout.Put(blocks[slot/tensor.BlockSlots], slot%tensor.BlockSlots, k, nil)
		}
		q, w := normal(c.heads*c.dim), normal(c.heads)
		valid := make([]uint64, len(blocks))
		for i := range valid {
			valid[i] = r.Uint64() | 1<<63 | 7
		}
		for _, mask := range [][]uint64{nil, valid} {
			var order []int
			score := make([]float64, c.n)
			for slot := range c.n {
				if mask != nil && mask[slot/64]>>(slot%64)&1 == 0 {
					continue
				}
				order = append(order, slot)
				for h := range c.heads {
					dot := 0.0
					for j, x := range keys[slot] {
						dot += float64(x) * float64(q[h*c.dim+j])
					}
					score[slot] += float64(w[h]) * max(0, dot/math.Sqrt(float64(c.dim)))
				}
			}
			got := s.Choose(rows, blocks, c.n, mask, q, w, c.k, new(tensor.AttnScratch))
			if len(order) <= c.k {
				if got != nil {
					t.Errorf("%+v: chose among %d slots", c, len(order))
				}
				continue
			}
			slices.SortStableFunc(order, func(a, b int) int {
				switch {
				case score[a] > score[b]:
					return -1
				case score[a] < score[b]:
					return 1
				}
				return 0
			})
			want := make([]uint64, len(blocks))
			for _, slot := range order[:c.k] {
				want[slot/64] |= 1 << (slot % 64)
			}
			parts := make([]float32, c.n)
			for b := range blocks { // a block at a time, the last first
				at := len(blocks) - 1 - b
				new(Scratch).Score(rows, blocks, at, at+1, mask, q, w, parts, new(tensor.AttnScratch))
			}
			if split := Best(parts, c.k, new(tensor.AttnScratch)); !slices.Equal(split, got) {
				t.Errorf("%+v: chose %x in parts, want %x", c, split, got)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%+v: chose %x, want %x", c, got, want)
			}
		}
	}
}
