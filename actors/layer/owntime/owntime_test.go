package owntime

import (
	"testing"
	"time"
)

// A pause of the process in any layer must not count as work. An increase of the work counts from the
// following step on.
func TestOwnIsNoPause(t *testing.T) {
	var o Meter
	step := func(layers ...int) int64 {
		o.Begin()
		for _, took := range layers {
			o.Add(time.Duration(took) * time.Millisecond)
		}
		return o.Sum.Milliseconds()
	}
	for _, c := range []struct {
		layers []int
		want   int64
	}{
		{[]int{3, 5, 4}, 0},
		{[]int{3, 5, 4}, 12},
		{[]int{3, 245, 4}, 17},
		{[]int{243, 5, 4}, 15},
		{[]int{30, 50, 40}, 48},
		{[]int{30, 50, 40}, 120},
		{[]int{30}, 30},
		{[]int{30, 50, 40, 7}, 120},
	} {
		if got := step(c.layers...); got != c.want {
			t.Errorf("%v: %d ms, want %d", c.layers, got, c.want)
		}
	}
}
