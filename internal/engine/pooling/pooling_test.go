package pooling

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// plain is the vector of a text whose states are all at hand.
func plain(m Method, states [][]float32) []float32 {
	switch m {
	case Last:
		return states[len(states)-1]
	case CLS:
		return states[0]
	}
	out := make([]float32, len(states[0]))
	for i := range out {
		sum := 0.0
		for _, s := range states {
			sum += float64(s[i])
		}
		out[i] = float32(sum / float64(len(states)))
	}
	return out
}

// TestChunks: the vector is that of the whole text, wherever it is cut.
func TestChunks(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		states := make([][]float32, 1+r.IntN(20))
		for i := range states {
			states[i] = []float32{float32(r.NormFloat64()), float32(r.NormFloat64() * 1e6), float32(r.NormFloat64() * 1e-6)}
		}
		for _, m := range []Method{Last, Mean, CLS} {
			a := New(m, len(states))
			for at := 0; at < len(states); {
				end := at + 1 + r.IntN(len(states)-at)
				lo, hi := a.Rows(at, end)
				if lo < at || hi > end || hi < lo {
					t.Fatalf("%v wants rows [%d,%d) of [%d,%d)", m, lo, hi, at, end)
				}
				scratch := make([]float32, 3) // the caller reuses its memory
				for _, s := range states[lo:hi] {
					copy(scratch, s)
					a.Add(scratch)
				}
				clear(scratch)
				at = end
			}
			same := func(a, b float32) bool { return math.Float32bits(a) == math.Float32bits(b) }
			if got, want := a.Vector(), plain(m, states); !slices.EqualFunc(got, want, same) {
				t.Fatalf("%v of %d states in chunks is %v, at once %v", m, len(states), got, want)
			}
		}
	}
}

func TestParse(t *testing.T) {
	for m := None; m < methods; m++ {
		if got, err := Parse(m.String()); got != m || err != nil {
			t.Errorf("%v parses to %v, %v", m, got, err)
		}
	}
	if _, err := Parse("max"); err == nil {
		t.Error("max is accepted")
	}
	if Method(9).Valid() || !CLS.Valid() {
		t.Error("Valid is wrong")
	}
}
