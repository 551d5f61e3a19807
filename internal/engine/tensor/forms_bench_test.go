package tensor

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
)

// gain reports how much longer f takes without a specialised kernel, comparing the fastest calls of
// both in turn: a kernel that gains less than 3 % is not worth its assembly.
func gain(b *testing.B, without *kernel.Set, f func()) {
	with := kernel.Active
	defer func() { kernel.Active = with }()
	least := [2]time.Duration{math.MaxInt64, math.MaxInt64}
	for b.Loop() {
		for i, k := range []*kernel.Set{with, without} {
			kernel.Active = k
			began := time.Now()
			f()
			least[i] = min(least[i], time.Since(began))
		}
	}
	b.ReportMetric(100*(float64(least[1])/float64(least[0])-1), "%gain")
}

// BenchmarkForms removes one specialised kernel of attention or of a tile after another, and does
// its best case with the remaining ones.
func BenchmarkForms(b *testing.B) {
	p := NewPool(1)
	defer p.Close()
	for dt, forms := range kernel.Active.Attend {
		for i, dim := range []int{96, 64, 128} {
			l := KVLayout{Type: dt, KDim: dim, VDim: dim}
			blocks := newCache(rng(1), l, 4096)
			for g, f := range forms[i] {
				if f == nil {
					continue
				}
				rest, less := *kernel.Active, forms
				less[i][g] = nil
				rest.Attend = map[DType]kernel.AttendKernels{dt: less}
				var s AttnScratch
				q, out := make([]float32, (g+1)*dim), make([]float32, (g+1)*dim)
				b.Run(fmt.Sprintf("%s/attend/%v/columns=%d/heads=%d", kernel.Active.Name, dt, 32<<i, g+1), func(b *testing.B) {
					gain(b, &rest, func() { Attend(out, q, g+1, Score{Scale: 0.1}, l, blocks, 4096, nil, &s) })
				})
			}
		}
	}
	formsOfPicked(b)
	for _, dt := range allWeights {
		for i, rows := range []int{4112, 4128, 4096} { // all but the last few panels are in fours
			const cols = 2048
			w, err := NewWeight(dt, rows, cols)
			if err != nil {
				b.Fatal(err)
			}
			for t, f := range kernel.Active.Tile[dt][i] {
				rest := *kernel.Active
				clear(rest.Tile[dt][i][t:]) // passes have as many tokens or one more, so there can be no gap
				if f == nil || i == 0 && t == 0 {
					continue // there is none, or it is the general fallback
				}
				n := t + 1
				x, y := make([]float32, n*cols), make([]float32, n*rows)
				b.Run(fmt.Sprintf("%s/tile/%v/panels=%d/tokens=%d", kernel.Active.Name, dt, 1<<i, n), func(b *testing.B) {
					gain(b, &rest, func() { p.MatMul(y, rows, w, x, cols, n) })
				})
			}
			if err := w.Close(); err != nil {
				b.Error(err)
			}
		}
	}
}

// formsOfPicked does the same for attention to some slots of every block, from memory, compared
// with the next narrower kernel and with none.
func formsOfPicked(b *testing.B) {
	const slots = 1 << 16
	for dt, forms := range kernel.Active.Picked {
		for i, dim := range []int{96, 128} {
			l := KVLayout{Type: dt, KDim: dim, VDim: dim}
			blocks, valid := newCache(rng(1), l, slots), make([]uint64, slots/BlockSlots)
			for g, f := range forms[i] {
				if f == nil {
					continue
				}
				rest, less, none := *kernel.Active, forms, *kernel.Active
				less[i][g], none.Picked = nil, nil
				rest.Picked = map[DType]kernel.AttendKernels{dt: less}
				var s AttnScratch
				q, out := make([]float32, (g+1)*dim), make([]float32, (g+1)*dim)
				for _, chunk := range []int{8, 32} {
					for j := range valid {
						valid[j] = prefixMask(chunk) << (j % (BlockSlots / chunk) * chunk)
					}
					for name, k := range map[string]*kernel.Set{"next": &rest, "none": &none} {
						b.Run(fmt.Sprintf("%s/picked/%v/columns=%d/heads=%d/of=%d/%s", kernel.Active.Name, dt, 32<<i, g+1, chunk, name), func(b *testing.B) {
							gain(b, k, func() { Attend(out, q, g+1, Score{Scale: 0.1}, l, blocks, slots, valid, &s) })
						})
					}
				}
			}
		}
	}
}
