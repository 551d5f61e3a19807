package tensor

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/tensor/f32"
)

// A landmark is the mean of the stored keys, its number is the lowest cosine, and a product with it
// is the serial chain, on every implementation.
func TestLandmarks(t *testing.T) {
	const chunks, g = 64*2 + 9, 7
	for i, l := range pageLayouts {
		for _, chunk := range []int{4, 8, 64} {
			kind := []DType{F32, BF16, Int8}[(i+chunk)%3]
			blocks, _ := pagesOf(l, chunks*chunk, 16, 5)
			clear(blocks[0][:chunk*l.KDim*l.elem()]) // some zero keys
			var index [][]byte
			row := make([]float32, (1+chunk)*l.KDim)
			means := make([][]float32, chunks)
			for c := range chunks {
				if c%BlockSlots == 0 {
					index = append(index, make([]byte, l.LandmarkBytes(kind)))
				}
				first := c * chunk % BlockSlots
				l.Landmark(kind, index[c/BlockSlots], c%BlockSlots, blocks[c*chunk/BlockSlots], first, first+chunk, row)
				sum, lowest := make([]float64, l.KDim), 1.0
				var keys [][]float32
				for i := range chunk {
					k, v := make([]float32, l.KDim), make([]float32, l.VDim)
					l.Get(blocks[c*chunk/BlockSlots], first+i, k, v)
					keys = append(keys, k)
					for d, x := range k {
						sum[d] += float64(x) / float64(chunk)
					}
				}
				for _, k := range keys {
					dot, kk, mm := 0.0, 0.0, 0.0
					for d, x := range k {
						dot, kk, mm = dot+float64(x)*sum[d], kk+float64(x)*float64(x), mm+sum[d]*sum[d]
					}
					if kk*mm == 0 {
						dot, kk, mm = 0, 1, 1
					}
					lowest = min(lowest, dot/math.Sqrt(kk*mm))
				}
				what := fmt.Sprintf("%v latent %v, chunk %d of %d", l.Type, l.Latent, c, chunk)
				if got := float64(l.LandmarkNumbers(kind, index[c/BlockSlots])[c%BlockSlots]); math.Abs(got-lowest) > 1e-5 {
					t.Fatalf("%s: cosine %v, want %v", what, got, lowest)
				}
				b, largest := l.landmarks(kind), 0.0
				for _, x := range sum {
					largest = max(largest, math.Abs(x))
				}
				means[c] = make([]float32, l.KDim)
				b.getKey(index[c/BlockSlots], c%BlockSlots, index[c/BlockSlots], means[c])
				for d, x := range means[c] {
					if math.Abs(float64(x)-sum[d]) > map[DType]float64{F32: 1e-6, BF16: 0.005, Int8: 0.005}[kind]*largest+1e-7 {
						t.Fatalf("%s: element %d is %v, want %v", what, d, x, sum[d])
					}
				}
			}
			q := normal(rng(9), g*l.KDim)
			score := func() []float32 {
				return slices.Clone(new(AttnScratch).ScoreLandmarks(l, kind, index, chunks-3, q, g))
			}
			allEqual(t, fmt.Sprintf("%v latent %v, chunks of %d", l.Type, l.Latent, chunk), score)
			if kind != Int8 {
				runs, some := []int32{0, 3, 17, 18, 20, 130}, new(AttnScratch)
				scores, n := some.ScoreLandmarkRuns(l, kind, index, runs, q, g)
				var want []float32
				for r := range g {
					for k := 0; k < len(runs); k += 2 {
						want = append(want, score()[r*(chunks-3)+int(runs[k]):][:runs[k+1]-runs[k]]...)
					}
				}
				if n != 114 || !slices.Equal(scores, want) {
					t.Fatalf("%v: runs of landmarks score %d: %v, want %v", l.Type, n, scores, want)
				}
				mean, key := make([]float32, l.KDim), make([]float32, l.KDim)
				l.MeanKey(mean, blocks, 8*chunk, 9*chunk, key)
				again := make([]byte, len(index[0]))
				l.SetLandmark(kind, again, 8, mean)
				other := [][]byte{slices.Concat(again, make([]byte, 256))}
				if !slices.Equal(new(AttnScratch).ScoreLandmarks(l, kind, other, 9, q, 1)[8:], score()[8:9]) {
					t.Fatalf("%v: another mean of the same keys", l.Type)
				}
			}
			for i, x := range score() {
				r, c, want := i/(chunks-3), i%(chunks-3), float32(0)
				scale := float32(1)
				if kind == Int8 {
					scale = l.landmarks(kind).scales(index[c/BlockSlots], 0)[c%BlockSlots]
				}
				for d, m := range means[c] {
					if kind == Int8 && scale != 0 {
						m = float32(math.Round(float64(m / scale)))
					}
					want = f32.FMA(m, q[r*l.KDim+d], want)
				}
				want *= scale
				if x != want {
					t.Fatalf("%v: landmark %d and query %d give %v, want %v", l.Type, c, r, x, want)
				}
			}
		}
	}
}

// A landmark of non-finite keys counts as the worst.
func TestLandmarkOfStrangeNumbers(t *testing.T) {
	for _, v := range []float32{float32(math.Inf(1)), float32(math.NaN()), 3e38} {
		l := KVLayout{Type: F32, KDim: 8, VDim: 8}
		block, index := make([]byte, l.BlockBytes()), make([]byte, l.LandmarkBytes(F32))
		k := []float32{1, 2, 3, 4, 5, 6, v, v}
		for slot := range 8 {
			l.Put(block, slot, k, k)
		}
		if l.Landmark(F32, index, 0, block, 0, 8, make([]float32, 9*8)); l.LandmarkNumbers(F32, index)[0] != -1 {
			t.Errorf("%v: cosine %v", v, l.LandmarkNumbers(F32, index)[0])
		}
	}
}

// Attention to pages in place equals attention with all other slots masked.
func TestPick(t *testing.T) {
	const n, g = 64*9 + 19, 3
	for _, l := range pageLayouts {
		for _, page := range []int{2, 8, 32} {
			blocks, _ := pagesOf(l, n, 16, 3)
			r := rng(4)
			var pages []int32
			mask := make([]uint64, len(blocks))
			for p := range (n + page - 1) / page {
				if r.IntN(5) == 0 && p*page/BlockSlots != 4 || p == (n-1)/page {
					pages = append(pages, int32(p))
					mask[p*page/BlockSlots] |= prefixMask(page) << (p * page % BlockSlots)
				}
			}
			q, want, got := normal(r, g*l.KDim), make([]float32, g*l.VDim), make([]float32, g*l.VDim)
			Attend(want, q, g, Score{Scale: 0.2}, l, blocks, n, mask, new(AttnScratch))
			s := new(AttnScratch)
			s.Mask(1000)
			list, slots, valid := s.Pick(blocks, pages, page, n)
			for _, b := range list {
				if &b[0] == &blocks[4][0] {
					t.Error("a block without a page is listed")
				}
			}
			Attend(got, q, g, Score{Scale: 0.2}, l, list, slots, valid, s)
			sameBits(t, fmt.Sprintf("%v latent %v page %d", l.Type, l.Latent, page), got, want)
			list, slots, valid = s.PickSlots(blocks, slices.Clone(mask), n)
			Attend(got, q, g, Score{Scale: 0.2}, l, list, slots, valid, s)
			sameBits(t, fmt.Sprintf("%v latent %v slots of page %d", l.Type, l.Latent, page), got, want)
		}
	}
}
