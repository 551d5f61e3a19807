package topk

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// kth finds the k-th highest of the sorted keys and its ties, for any range of keys.
func TestKthIsOfTheSortedKeys(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		n, from, width := 1+r.IntN(300), r.Uint32(), r.Uint32()>>r.IntN(32)
		keys := make([]uint32, n)
		for i := range keys {
			keys[i] = min(from, ^width) + uint32(r.Uint64N(uint64(width)+1))
			if r.IntN(50) == 0 {
				keys[i] = [2]uint32{0, ^uint32(0)}[r.IntN(2)]
			}
		}
		sorted := slices.Sorted(slices.Values(keys))
		slices.Reverse(sorted)
		for k := 1; k <= n; k += 1 + r.IntN(20) {
			want := sorted[k-1]
			ties := k - slices.Index(sorted, want)
			if key, got := kth(keys, k); key != want || got != ties {
				t.Fatalf("highest %d of %d keys: %x with %d ties, want %x with %d", k, n, key, got, want, ties)
			}
		}
	}
}

// The chosen pages are those of a stable sort by score, plus the first and the last.
func TestChosenPages(t *testing.T) {
	scratch := new(tensor.AttnScratch)
	rapid.Check(t, func(r *rapid.T) {
		score := rapid.SampledFrom([]float32{-3, -1, 0, float32(math.Copysign(0, -1)), 1e-40, 2, 7, float32(math.Inf(1)), float32(math.Inf(-1))})
		if rapid.Bool().Draw(r, "all different") {
			score = rapid.Float32Range(-5, 5)
		}
		scores := rapid.SliceOfN(score, 3, 200).Draw(r, "scores")
		for n := rapid.SampledFrom([]int{0, 2000}).Draw(r, "more"); len(scores) < n; {
			scores = append(scores, scores[len(scores)-3]+float32(len(scores)%19)/64)
		}
		k := rapid.IntRange(2, len(scores)-1).Draw(r, "k")
		var rest []int32
		for i := range len(scores) - 2 {
			rest = append(rest, int32(i+1))
		}
		slices.SortStableFunc(rest, func(a, b int32) int {
			x, y := scores[a], scores[b]
			switch {
			case x > y || x == y && !math.Signbit(float64(x)) && math.Signbit(float64(y)):
				return -1
			case x < y || x == y && math.Signbit(float64(x)) && !math.Signbit(float64(y)):
				return 1
			}
			return 0
		})
		want := append([]int32{0, int32(len(scores) - 1)}, rest[:k-2]...)
		slices.Sort(want)
		mask, row := make([]uint64, (len(scores)+63)/64), slices.Clone(scores)
		row[0], row[len(row)-1] = NaN, NaN
		if k > 2 {
			Highest(row, k-2, mask, scratch)
		}
		mask[0] |= 1
		mask[(len(row)-1)/64] |= 1 << ((len(row) - 1) % 64)
		if got := Listed(mask, nil); !slices.Equal(got, want) {
			r.Fatalf("%d of %v: %v, want %v", k, scores, got, want)
		}
	})
}
