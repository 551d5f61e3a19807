package kvcache

import (
	"math/rand/v2"
	"slices"
	"testing"
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
