package eval

import (
	"hash/fnv"
	"math/bits"
	"strconv"
)

// dice are SplitMix64 with the few draws that the tasks need. math/rand/v2 does
// not promise the same draws in the next release; samples must be the same ones
// wherever and whenever they are made.
type dice struct{ state uint64 }

// newDice seeds from the name of a sample, so that no sample depends on how many
// others are made.
func newDice(seed uint64, task string, length, index int) *dice {
	h := fnv.New64a()
	for _, s := range []string{strconv.FormatUint(seed, 10), task, strconv.Itoa(length), strconv.Itoa(index)} {
		_, _ = h.Write([]byte(s)) // a hash does not fail
		_, _ = h.Write([]byte{0})
	}
	return &dice{h.Sum64()}
}

func (d *dice) bits() uint64 {
	d.state += 0x9e3779b97f4a7c15
	z := d.state
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// below draws from [0,n); the bias of the multiplication is below 2^-40 here.
func (d *dice) below(n int) int {
	hi, _ := bits.Mul64(d.bits(), uint64(n))
	return int(hi)
}

// unit draws from [0,1).
func (d *dice) unit() float64 { return float64(d.bits()>>11) / (1 << 53) }

func (d *dice) shuffle(n int, swap func(i, j int)) {
	for i := n - 1; i > 0; i-- {
		swap(i, d.below(i+1))
	}
}

// sample draws k of the numbers [0,n), in random order.
func (d *dice) sample(n, k int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	d.shuffle(n, func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all[:k]
}

func pick[T any](d *dice, from []T) T { return from[d.below(len(from))] }
