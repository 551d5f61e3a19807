package topology

import (
	"math"
	"testing"
)

func TestShares(t *testing.T) {
	node := func(id string, share, speed float64) Node { return Node{ID: id, Share: share, Speed: speed} }
	inf, nan := math.Inf(1), math.NaN()
	for what, c := range map[string]struct {
		part     []Node
		operator map[string]float64
		want     []float64
		capped   int
	}{
		"measured":                          {[]Node{node("a", 0, 2), node("b", 0, 3), node("c", 0, 1.5)}, nil, []float64{2, 3, 1.5}, 0},
		"a smaller claim":                   {[]Node{node("a", 1, 2), node("b", 0, 2)}, nil, []float64{1, 2}, 0},
		"a claim far above the measurement": {[]Node{node("a", 100, 0.75), node("b", 0, 1), node("c", 0, 1)}, nil, []float64{1.5, 1, 1}, 0},
		"a claim of half of the model": {[]Node{node("a", 0, 1), node("b", 0, 1), node("c", 0, 1), node("d", 0, 1), node("x", 4, 1000)},
			nil, []float64{1, 1, 1, 1, 2}, 1},
		"a claim of all of it": {[]Node{node("a", 0, 1), node("b", 0, 1), node("x", 1e308, 1e308)}, nil, []float64{1, 1, 2}, 1},
		"two false claims": {[]Node{node("a", 0, 1), node("b", 0, 1), node("c", 0, 1), node("x", 90, 90), node("y", 90, 90)},
			nil, []float64{1, 1, 1, 2, 2}, 2},
		"no valid numbers": {[]Node{node("a", nan, nan), node("b", inf, inf), node("c", -1, -1), node("d", 0, 0)},
			nil, []float64{1, 1, 1, 1}, 0},
		"the operator's share": {[]Node{node("a", 0, 1), node("b", 0, 1), node("x", 4, 1)},
			map[string]float64{"x": 10}, []float64{1, 1, 10}, 0},
		"the operator's shares of the others": {[]Node{node("a", 0, 1), node("b", 0, 1), node("x", 0, 9)},
			map[string]float64{"a": 5, "b": 5}, []float64{5, 5, 9}, 0},
		"alone": {[]Node{node("x", 7, 1000)}, nil, []float64{7}, 0},
	} {
		a := NewAuthority(AuthorityConfig{Shares: c.operator})
		got := a.shares(c.part)
		for i := range c.want {
			if got[i] != c.want[i] {
				t.Errorf("%s: shares %v, want %v", what, got, c.want)
				break
			}
		}
		if len(a.Capped()) != c.capped {
			t.Errorf("%s: capped %v", what, a.Capped())
		}
	}
}
