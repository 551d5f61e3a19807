package layer

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// TestBestOf compares the best of parts with the best of the whole row, for equal logits, NaN and
// infinities.
func TestBestOf(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	values := []float32{nan, -inf, 0, 1, 1, 2, nan}
	r := rand.New(rand.NewPCG(1, 1))
	for range 20000 {
		logits := make([]float32, 1+r.IntN(12))
		some := values[:1+r.IntN(len(values))]
		for i := range logits {
			logits[i] = some[r.IntN(len(some))]
		}
		parts := 1 + r.IntN(len(logits))
		var of []int
		for p := range parts {
			lo, hi := len(logits)*p/parts, len(logits)*(p+1)/parts
			of = append(of, lo+tensor.ArgMax(logits[lo:hi]))
		}
		if got, want := bestOf(logits, of), tensor.ArgMax(logits); got != want {
			t.Fatalf("%v in %d parts: %d, want %d", logits, parts, got, want)
		}
	}
}
