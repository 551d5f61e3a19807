package sampler

import "math"

// makeKey returns a key that orders candidates: by logit descending, then by token ascending, is by
// key descending. The keys of one position are distinct.
func makeKey(logit float32, token int) uint64 {
	if logit == 0 {
		logit = 0 // -0 and +0 are a tie
	}
	b := math.Float32bits(logit)
	if b>>31 != 0 {
		b = ^b
	} else {
		b |= 1 << 31
	}
	return uint64(b)<<32 | uint64(^uint32(token))
}

func keyToken(key uint64) int32 { return int32(^uint32(key)) }

func keyLogit(key uint64) float32 {
	b := uint32(key >> 32)
	if b>>31 != 0 {
		return math.Float32frombits(b &^ (1 << 31))
	}
	return math.Float32frombits(^b)
}

// candidate reports whether a logit can be chosen: it is neither NaN nor -Inf.
func candidate(l float32) bool { return l >= -math.MaxFloat32 }

// topKeys returns the keys of the k best candidates (fewer if there are fewer), unordered. It reads
// the logits once and keeps a short buffer that it cuts to k when full, so the vocabulary is never
// sorted. buf is reused.
func topKeys(buf []uint64, logits []float32, k int) []uint64 {
	k = min(k, len(logits))
	limit, floor := 2*k+256, uint64(0)
	buf = buf[:0]
	for i, l := range logits {
		if !candidate(l) {
			continue
		}
		key := makeKey(l, i)
		if key <= floor {
			continue
		}
		buf = append(buf, key)
		if len(buf) == limit {
			buf = cutKeys(buf, k)
			floor = lowest(buf)
		}
	}
	return cutKeys(buf, k)
}

func lowest(keys []uint64) uint64 {
	low := ^uint64(0)
	for _, k := range keys {
		low = min(low, k)
	}
	return low
}

// cutKeys moves the k highest keys to the front (quickselect) and returns them.
func cutKeys(keys []uint64, k int) []uint64 {
	if k >= len(keys) {
		return keys
	}
	lo, hi := 0, len(keys)
	for hi-lo > 1 {
		p := medianOf3(keys[lo], keys[lo+(hi-lo)/2], keys[hi-1])
		m := lo
		at := lo
		for i := lo; i < hi; i++ {
			if keys[i] > p {
				keys[i], keys[m] = keys[m], keys[i]
				if at == m {
					at = i
				}
				m++
			} else if keys[i] == p {
				at = i
			}
		}
		keys[at], keys[m] = keys[m], keys[at]
		switch {
		case k <= m:
			hi = m
		case k == m+1:
			return keys[:k]
		default:
			lo = m + 1
		}
	}
	return keys[:k]
}

// weighted is a candidate with its unnormalised probability in fixed point. Integer sums are the
// same in any order, so selection can replace sorting without changing any draw.
type weighted struct{ key, weight uint64 }

// prefix moves the smallest set of best candidates whose weights sum to more than target to the
// front, and returns its size. The last of them is the candidate at which the cumulative weight
// exceeds target. The total must exceed target. Expected time is linear.
func prefix(items []weighted, target uint64) int {
	lo, hi, above := 0, len(items), uint64(0) // above: weight of items[:lo]
	for hi-lo > 1 {
		p := medianOf3(items[lo].key, items[lo+(hi-lo)/2].key, items[hi-1].key)
		m, at, sum := lo, lo, uint64(0)
		for i := lo; i < hi; i++ {
			switch it := items[i]; {
			case it.key > p:
				sum += it.weight
				items[i], items[m] = items[m], it
				if at == m {
					at = i
				}
				m++
			case it.key == p:
				at = i
			}
		}
		items[at], items[m] = items[m], items[at]
		switch {
		case above+sum > target:
			hi = m
		case above+sum+items[m].weight > target:
			return m + 1
		default:
			above += sum + items[m].weight
			lo = m + 1
		}
	}
	return lo + 1
}

func medianOf3(a, b, c uint64) uint64 {
	return max(min(a, b), min(max(a, b), c))
}
