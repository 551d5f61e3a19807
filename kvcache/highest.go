package kvcache

import "math"

var negInf = float32(math.Inf(-1))

// ordered is x as a key: keys are in the order of the numbers, below math.MaxUint32.
func ordered(x float32) uint32 {
	bits := math.Float32bits(x)
	if bits>>31 != 0 {
		return ^bits
	}
	return bits | 1<<31
}

// highest puts the places of the k highest keys into places, in order, and returns k; the
// earlier of equal keys wins.
func highest(keys []uint32, k int, places []int32) int {
	least, ties := kth(keys, k)
	at := 0
	for i, key := range keys {
		if key < least || key == least && ties == 0 {
			continue
		}
		if key == least {
			ties--
		}
		places[at], at = int32(i), at+1
	}
	return at
}

// kth is the k-th highest key, and how many of those that equal it are among the k highest:
// digit by digit, from the first that decides.
func kth(keys []uint32, k int) (key uint32, ties int) {
	const bits = 11
	var count [1 << bits]int32
	var few [512]uint32
	known := uint32(0) // a mask
	for shift := 32 - bits; ; shift -= bits {
		shift = max(shift, 0)
		clear(count[:])
		for _, x := range keys {
			if x&known == key {
				count[x>>shift%(1<<bits)]++
			}
		}
		digit := len(count) - 1
		for ; k > int(count[digit]); digit-- {
			k -= int(count[digit])
		}
		key |= uint32(digit) << shift
		known = ^uint32(0) << shift
		if shift == 0 {
			return key, k
		}
		if n := int(count[digit]); n <= len(few) && len(keys) > len(few) { // what is left to look at
			left := few[:0]
			for _, x := range keys {
				if x&known == key {
					left = append(left, x)
				}
			}
			keys = left
		}
	}
}
