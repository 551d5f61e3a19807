package budget

import (
	"math"
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
		topk, beta, layers := rapid.IntRange(0, 1<<24).Draw(r, "topk"), rapid.IntRange(1, 1000).Draw(r, "beta"),
			rapid.IntRange(1, 130).Draw(r, "layers")
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

// TestHeadsKeepTheBestBlocks checks budgets of heads: their sum, their floor, and without a floor that no
// block of votes outside is higher than one inside.
func TestHeadsKeepTheBestBlocks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := Heads{Floor: rapid.SampledFrom([]int{0, 200, 1000}).Draw(t, "floor"), Block: rapid.IntRange(1, 5).Draw(t, "block")}
		heads, topk := rapid.IntRange(1, 6).Draw(t, "heads"), rapid.IntRange(0, 20).Draw(t, "topk")
		candidates := topk + rapid.IntRange(1, 60).Draw(t, "more")
		curves := make([][]float32, heads)
		for head := range curves {
			votes := make([]float32, candidates)
			for i := range votes {
				votes[i] = float32(rapid.IntRange(0, 50).Draw(t, "vote"))
			}
			curves[head] = x.Curve(votes, topk, heads)
			if !slices.IsSortedFunc(curves[head], func(a, b float32) int { return int(b - a) }) {
				t.Fatalf("a curve rises: %v", curves[head])
			}
		}
		got, sum, lowest, highest := x.Divide(curves, topk), 0, float32(math.Inf(1)), float32(0)
		for head, n := range got {
			sum += n
			if n < x.Floor*x.Blocks(topk)/1000 || topk%x.Block+n*x.Block > candidates {
				t.Fatalf("head %d has %d blocks of %d in the mean, and %d candidates", head, n, x.Blocks(topk), candidates)
			}
			if n > 0 {
				lowest = min(lowest, curves[head][n-1])
			}
			if n < len(curves[head]) {
				highest = max(highest, curves[head][n])
			}
		}
		if sum != heads*x.Blocks(topk) {
			t.Fatalf("%v: %d blocks, want %d", got, sum, heads*x.Blocks(topk))
		}
		if x.Floor == 0 && highest > lowest {
			t.Fatalf("%v: a block with %v votes is outside, one with %v inside", got, highest, lowest)
		}
		if x.Floor == 1000 && slices.Max(got) > x.Blocks(topk) {
			t.Fatalf("%v: a floor of all is the mean", got)
		}
	})
}
