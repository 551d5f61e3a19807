package budget

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestPyramid(t *testing.T) {
	for _, c := range []struct {
		topk, beta, candidates int
		want                   []int
	}{
		{100, 20, 1000, []int{195, 148, 100, 53, 5}},
		{100, 20, 150, []int{150, 125, 100, 75, 50}}, // the lowest layers keep all
		{100, 1, 1000, []int{100, 100, 100, 100, 100}},
		{100, 20, 100, []int{100, 100, 100, 100, 100}},
		{0, 20, 1000, []int{0, 0, 0, 0, 0}},
	} {
		var got []int
		for layer := range len(c.want) {
			got = append(got, Pyramid(c.topk, c.beta, c.candidates, layer, len(c.want)))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// TestPyramidKeepsItsTotal checks that a pyramid takes as many slots as equal budgets do, except for rounding, and
// that no layer gets more than a lower one or than there is.
func TestPyramidKeepsItsTotal(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		topk, beta, layers := rapid.IntRange(0, 1<<24).Draw(r, "topk"), rapid.IntRange(1, 1000).Draw(r, "beta"), rapid.IntRange(1, 130).Draw(r, "layers")
		candidates, sum, before := rapid.IntRange(topk, 1<<25).Draw(r, "candidates"), 0, 1<<30
		for layer := range layers {
			n := Pyramid(topk, beta, candidates, layer, layers)
			if n > before || n > candidates || n < 0 {
				r.Fatalf("layer %d of %d gets %d of %d, the one below %d", layer, layers, n, candidates, before)
			}
			sum, before = sum+n, n
		}
		if sum < topk*layers || sum > (topk+1)*layers {
			r.Fatalf("%d slots in all, %d layers of %d", sum, layers, topk)
		}
	})
}
