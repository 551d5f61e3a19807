package rotary

import (
	"math"

	"github.com/shoal-llm/shoal/internal/engine/tensor/f32"
)

// YaRN (Peng et al., arXiv 2309.00071, section 3): pairs with many turns in the trained context
// keep their frequency, those with few turns are stretched, and a linear ramp over the pairs blends
// in between. Rotated elements are also scaled, as in the reference implementation.

// YarnScale is 0.1 m Log(factor) + 1 (equation 22, with DeepSeek's m).
func YarnScale(factor, m float64) float64 {
	if factor <= 1 {
		return 1
	}
	return float64(float64(0.1*m)*Log(factor)) + 1
}

// yarn blends the frequencies of all pairs (equation 17 with the ramp over pairs).
func (r Rope) yarn(freq []float64) {
	dim := float64(2 * len(freq))
	// pair is the fractional pair whose rotation makes the given number of turns in OriginalMax tokens.
	pair := func(turns float64) float64 {
		return float64(dim*Log(float64(r.OriginalMax)/float64(turns*2*math.Pi))) / float64(2*Log(r.Theta))
	}
	low, high := pair(r.Fast), pair(r.Slow)
	if !r.Exact {
		low, high = math.Floor(low), math.Ceil(high)
	}
	low, high = max(low, 0), min(high, dim-1)
	if low == high {
		high += 0.001
	}
	for i, f := range freq {
		stretch := min(max((float64(i)-low)/(high-low), 0), 1)
		freq[i] = float64(f/r.Factor*stretch) + float64(f*(1-stretch))
	}
}

// Log has the same bits on every architecture, which math.Log does not guarantee.
func Log(x float64) float64 { return float64(f32.Log(float32(x))) }
