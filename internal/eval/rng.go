package eval

import (
	"hash/fnv"
	"math/bits"
	"strconv"
)

// rng is SplitMix64 with the draws that the tasks need. math/rand/v2 does not guarantee the same
// draws in its next release, but samples must be the same always and everywhere.
type rng struct{ state uint64 }

// newRNG derives the seed from the identity of a sample, so that samples do not depend on each
// other.
func newRNG(seed uint64, task string, length, index int) *rng {
	h := fnv.New64a()
	for _, s := range []string{strconv.FormatUint(seed, 10), task, strconv.Itoa(length), strconv.Itoa(index)} {
		_, _ = h.Write([]byte(s)) // a hash write never fails
		_, _ = h.Write([]byte{0})
	}
	return &rng{h.Sum64()}
}

func (d *rng) bits() uint64 {
	d.state += 0x9e3779b97f4a7c15
	z := d.state
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// below draws from [0,n). The bias of the multiplication is below 2^-40 here.
func (d *rng) below(n int) int {
	hi, _ := bits.Mul64(d.bits(), uint64(n))
	return int(hi)
}

// unit draws from [0,1).
func (d *rng) unit() float64 { return float64(d.bits()>>11) / (1 << 53) }

func (d *rng) shuffle(n int, swap func(i, j int)) {
	for i := n - 1; i > 0; i-- {
		swap(i, d.below(i+1))
	}
}

// sample draws k of the numbers [0,n) in random order.
func (d *rng) sample(n, k int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	d.shuffle(n, func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all[:k]
}

func pick[T any](d *rng, from []T) T { return from[d.below(len(from))] }
