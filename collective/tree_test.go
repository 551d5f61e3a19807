package collective

import (
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

func TestCombineTreeTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		n := rapid.IntRange(1, 16).Draw(t, "ranks")
		size := rapid.SampledFrom([]int{0, 1, 17, 511, 512, 513, 1300}).Draw(t, "size")
		units, nodes, values, sum := randomTree(r, n, size)
		var flat []tensor.Span
		var parts [][]float32
		for k := range nodes {
			flat = append(flat, nodes[k]...)
			parts = append(parts, values[k]...)
		}
		if !isTiling(flat, units) {
			t.Fatalf("%v does not tile %d units", flat, units)
		}
		got := poisoned(size)
		c := combiner{nodes: flat, parts: parts}
		c.sum(got, units)
		want := poisoned(size)
		tensor.CombineTree(want, flat, parts, units)
		if err := sameFloats("tensor.CombineTree", want, sum); err != nil {
			t.Fatalf("%v of %d units: %v", flat, units, err)
		}
		if err := sameFloats("sum", got, sum); err != nil {
			t.Fatalf("%v of %d units: %v", flat, units, err)
		}
	})
}

func TestIsTilingRefuses(t *testing.T) {
	for _, c := range []struct {
		units int
		nodes []tensor.Span
	}{
		{4, nil}, {0, nil}, {4, []tensor.Span{{Lo: 0, Hi: 2}}}, {4, []tensor.Span{{Lo: 0, Hi: 3}, {Lo: 3, Hi: 4}}},
		{4, []tensor.Span{{Lo: 0, Hi: 2}, {Lo: 2, Hi: 3}}},
		{4, []tensor.Span{{Lo: 0, Hi: 4}, {Lo: 0, Hi: 4}}}, {4, []tensor.Span{{Lo: 0, Hi: 2}, {Lo: 1, Hi: 4}}},
		{4, []tensor.Span{{Lo: 2, Hi: 4}, {Lo: 0, Hi: 2}}}, {3, []tensor.Span{{Lo: 0, Hi: 1}, {Lo: 1, Hi: 3}}},
	} {
		if isTiling(c.nodes, c.units) {
			t.Errorf("%v accepted as a tiling of %d units", c.nodes, c.units)
		}
	}
}

func TestSlicesTile(t *testing.T) {
	for size := 1; size <= 16; size++ {
		for _, n := range []int{0, 1, 15, 16, 17, 100, 4096, 11008} {
			at := 0
			for r := range size {
				lo, hi := Slice(n, size, r)
				if lo != at || hi < lo {
					t.Fatalf("Slice(%d, %d, %d) = %d, %d; want from %d", n, size, r, lo, hi, at)
				}
				at = hi
			}
			if at != n {
				t.Fatalf("slices of %d over %d end at %d", n, size, at)
			}
		}
	}
}
