package tensor

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/tensor/f32"
	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
)

var pageLayouts = []KVLayout{
	{Type: F32, KDim: 16, VDim: 32}, {Type: BF16, KDim: 64, VDim: 64}, {Type: Int8, KDim: 64, VDim: 32},
	{Type: BF16, KDim: 96, VDim: 64, Latent: true}, {Type: Int8, KDim: 40, VDim: 32, Latent: true},
}

// pagesOf fills blocks with n random rows, and their index as tokens arrive: some at a time.
func pagesOf(l KVLayout, n, page int, seed uint64) (blocks, index [][]byte) {
	r, row := rng(seed), make([]float32, 3*l.KDim)
	for slot := range n {
		if slot%BlockSlots == 0 {
			blocks = append(blocks, make([]byte, l.BlockBytes()))
		}
		if slot%(BlockSlots*page) == 0 {
			// A portable kernel's pointer ends beyond the last panel: in an arena, or here.
			index = append(index, make([]byte, l.IndexBytes()+4*64)[:l.IndexBytes()])
		}
		l.Put(blocks[slot/BlockSlots], slot%BlockSlots, normal(r, l.KDim), normal(r, l.VDim))
	}
	for slot := 0; slot < n; {
		first := slot / page * page
		to := min(slot+1+r.IntN(7), first+page, n)
		in := func(x int) int { return x - first/BlockSlots*BlockSlots }
		p := first / page
		l.Bound(index[p/BlockSlots], p%BlockSlots, blocks[first/BlockSlots], in(first), in(slot), in(to), row)
		slot = to
	}
	return blocks, index
}

// The score of a page has the same bits on every implementation: the serial chain over the bounds'
// elements from the comment in pages.go, for the query with the highest score. No key of the page
// scores more.
func TestScorePages(t *testing.T) {
	const n, g = 64*16*2 + 35, 7
	for _, l := range pageLayouts {
		for _, page := range []int{16, 32, 64} {
			blocks, index := pagesOf(l, n, page, 5)
			pages := (n + page - 1) / page
			q := normal(rng(9), g*l.KDim)
			score := func() []float32 {
				return slices.Clone(new(AttnScratch).ScorePages(l, index, pages, q, g))
			}
			what := fmt.Sprintf("%v latent %v page %d", l.Type, l.Latent, page)
			allEqual(t, what, score)
			got := score()
			k, v := make([]float32, l.KDim), make([]float32, l.VDim)
			for p := range pages {
				hi, lo := make([]float32, l.KDim), make([]float32, l.KDim)
				var keys [][]float32
				for slot := p * page; slot < min(n, (p+1)*page); slot++ {
					l.Get(blocks[slot/BlockSlots], slot%BlockSlots, k, v)
					keys = append(keys, slices.Clone(k))
				}
				for i := range l.KDim {
					hi[i], lo[i] = kernel.NegInf, -kernel.NegInf
					for _, key := range keys {
						hi[i], lo[i] = max(hi[i], key[i]), min(lo[i], key[i])
					}
					if l.Type != F32 {
						hi[i], lo[i] = outwardsSlow(hi[i], 1), outwardsSlow(lo[i], -1)
					}
				}
				want, most := kernel.NegInf, math.Inf(-1)
				for r := range g {
					row, sum := q[r*l.KDim:][:l.KDim], float32(0)
					for i, x := range row {
						sum = f32.FMA(hi[i], max(x, 0), sum)
					}
					for i, x := range row {
						sum = f32.FMA(lo[i], min(x, 0), sum)
					}
					want = max(want, sum)
					for _, key := range keys {
						dot := 0.0
						for i, x := range row {
							dot += float64(x) * float64(key[i])
						}
						most = max(most, dot)
					}
				}
				if got[p] != want {
					t.Fatalf("%s: page %d scores %v, want %v", what, p, got[p], want)
				}
				if slack := 1e-4 * (1 + math.Abs(most)); float64(got[p]) < most-slack {
					t.Fatalf("%s: page %d is bound by %v, a key scores %v", what, p, got[p], most)
				}
			}
		}
	}
}

// outwardsSlow tries the neighbours.
func outwardsSlow(x, sign float32) float32 {
	h := f32.ToBF16(x)
	best := float32(math.Inf(int(sign)))
	for _, c := range []uint16{h - 1, h, h + 1} {
		if y := f32.FromBF16(c); y*sign >= x*sign && math.Abs(float64(y-x)) < math.Abs(float64(best-x)) {
			best = y
		}
	}
	return best
}

// Attention over gathered pages equals attention over a cache that holds nothing else, and whole
// blocks are not copied.
func TestGather(t *testing.T) {
	const n, g = 64*9 + 19, 3
	for _, l := range pageLayouts {
		for _, page := range []int{16, 32} {
			blocks, _ := pagesOf(l, n, page, 3)
			r := rng(4)
			var pages []int32
			for p := range (n + page - 1) / page {
				if r.IntN(3) == 0 || p/4 == 3 || p == (n-1)/page {
					pages = append(pages, int32(p))
				}
			}
			slots := (len(pages)-1)*page + (n-1)%page + 1
			q := normal(r, g*l.KDim)
			what := fmt.Sprintf("%v latent %v page %d", l.Type, l.Latent, page)
			attend := func() []float32 {
				s, out := new(AttnScratch), make([]float32, g*l.VDim)
				Attend(out, q, g, Score{Scale: 0.2}, l, s.Gather(l, blocks, pages, page), slots, nil, new(AttnScratch))
				return out
			}
			var alone [][]byte
			for slot := range slots {
				if slot%BlockSlots == 0 {
					alone = append(alone, make([]byte, l.BlockBytes()))
				}
				from := int(pages[slot/page])*page + slot%page
				l.CopySlot(alone[slot/BlockSlots], slot%BlockSlots, blocks[from/BlockSlots], from%BlockSlots)
			}
			want := make([]float32, g*l.VDim)
			Attend(want, q, g, Score{Scale: 0.2}, l, alone, slots, nil, new(AttnScratch))
			sameBits(t, what, attend(), want)
			allEqual(t, what, attend)
		}
	}
	l := pageLayouts[1]
	blocks, _ := pagesOf(l, 256, 16, 1)
	list := new(AttnScratch).Gather(l, blocks, []int32{0, 1, 2, 3, 5, 8, 9, 10, 12, 13, 14, 15}, 16)
	if &list[0][0] != &blocks[0][0] || &list[1][0] == &blocks[1][0] || &list[2][0] != &blocks[3][0] {
		t.Error("a whole block was copied, or another was not")
	}
}
