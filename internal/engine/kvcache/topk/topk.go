// Package topk finds the largest of many scores.
package topk

import (
	"math"
	"math/bits"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// NegInf and NaN are the scores of entries that are never chosen: NegInf still has a place in an order.
var NegInf, NaN = float32(math.Inf(-1)), float32(math.NaN())

// Ordered maps x to a key. Keys are in the order of the numbers.
func Ordered(x float32) uint32 {
	bits := math.Float32bits(x)
	if bits>>31 != 0 {
		return ^bits
	}
	return bits | 1<<31
}

// number is the inverse of Ordered.
func number(key uint32) float32 {
	if key>>31 != 0 {
		return math.Float32frombits(key &^ (1 << 31))
	}
	return math.Float32frombits(^key)
}

// Highest sets the bits of the k highest elements of x, k at least one. Of equals the earlier one
// is chosen. NaN is never chosen.
func Highest(x []float32, k int, chosen []uint64, s *tensor.AttnScratch) {
	keys, places := s.Chosen(len(x), len(x))
	// The k-th highest of the group maxima is at most the k-th highest element, and few
	// elements are as high.
	least, m := NegInf, 1<<(bits.Len(uint(len(x)/k))/2)
	tops := s.Tops(x, m)
	if len(tops) < k {
		tops = nil
	}
	if tops != nil {
		for i, top := range tops {
			keys[i] = Ordered(top)
		}
		key, _ := kth(keys[:len(tops)], k)
		least = number(key)
	}
	keys, places = keys[:0], places[:0]
	add := func(i int) {
		if x[i] >= least {
			keys, places = append(keys, Ordered(x[i])), append(places, int32(i))
		}
	}
	for i, top := range tops {
		if top >= least {
			for j := range m {
				add((i/16*m+j)*16 + i%16)
			}
		}
	}
	for i := len(tops) * m; i < len(x); i++ {
		add(i)
	}
	key, ties := uint32(0), 0
	if len(keys) > k {
		key, ties = kth(keys, k)
	}
	equal := places[:0]
	for i, place := range places {
		switch {
		case keys[i] > key:
			chosen[place/64] |= 1 << (place % 64)
		case keys[i] == key:
			equal = append(equal, place)
		}
	}
	slices.Sort(equal)
	for _, place := range equal[:ties] {
		chosen[place/64] |= 1 << (place % 64)
	}
}

// Listed returns the positions of the bits of mask, in order.
func Listed(mask []uint64, places []int32) []int32 {
	places = places[:0]
	for i, word := range mask {
		for ; word != 0; word &= word - 1 {
			places = append(places, int32(i*64+bits.TrailingZeros64(word)))
		}
	}
	return places
}

// Mark sets the bits [lo, hi) of mask.
func Mark(mask []uint64, lo, hi int) {
	for lo < hi {
		in := lo % 64
		some := min(hi-lo, 64-in)
		mask[lo/64] |= ^uint64(0) >> (64 - some) << in
		lo += some
	}
}

// kth returns the k-th highest key, and how many keys equal to it are among the k highest. It
// counts the keys in at most 256 equal parts of their range, then divides the part that decides.
func kth(keys []uint32, k int) (key uint32, ties int) {
	lo := slices.Min(keys)
	for span := slices.Max(keys) - lo; ; {
		var count [1 << 8]int32
		shift := max(0, bits.Len32(span)-8)
		for _, x := range keys {
			if x -= lo; x <= span {
				count[x>>shift&0xff]++
			}
		}
		part := span >> shift
		for ; k > int(count[part]); part-- {
			k -= int(count[part])
		}
		if lo += part << shift; shift == 0 {
			return lo, k
		}
		span = 1<<shift - 1
	}
}
