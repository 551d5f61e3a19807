package model

import (
	"math"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// YaRN (Peng et al., arXiv 2309.00071, section 3): pairs with many turns in the trained context
// keep their frequency, those with few turns are stretched, and a linear ramp over the pairs blends
// in between. Rotated elements are also scaled, as in the reference implementation.

// yarn reads the parameters, with the reference's defaults. original is the default of the trained
// length.
func (f *fields) yarn(r *Rope, original int) {
	r.Type = "yarn"
	r.Factor = f.Required("factor", 1, 1e6)
	r.OriginalMax = f.Size("original_max_position_embeddings", original, maxPositions)
	r.Fast = f.Number("beta_fast", 32, 1e-3, 1e6)
	r.Slow = f.Number("beta_slow", 1, 1e-3, 1e6)
	r.Exact = !f.Bool("truncate", true)
	m := f.Number("mscale", 0, 0, 100)
	r.MScaleAll = f.Number("mscale_all_dim", 0, 0, 100)
	r.Amplitude = yarnScale(r.Factor, 1)
	if m != 0 && r.MScaleAll != 0 {
		r.Amplitude = yarnScale(r.Factor, m) / yarnScale(r.Factor, r.MScaleAll)
	}
	r.Amplitude = f.Number("attention_factor", r.Amplitude, 1e-3, 1e3)
}

// yarnScale is 0.1 m ln(factor) + 1 (equation 22, with DeepSeek's m).
func yarnScale(factor, m float64) float64 {
	if factor <= 1 {
		return 1
	}
	return float64(float64(0.1*m)*ln(factor)) + 1
}

// yarn blends the frequencies of all pairs (equation 17 with the ramp over pairs).
func (r Rope) yarn(freq []float64) {
	dim := float64(2 * len(freq))
	// pair is the fractional pair with that many turns in OriginalMax tokens.
	pair := func(turns float64) float64 {
		return float64(dim*ln(float64(r.OriginalMax)/float64(turns*2*math.Pi))) / float64(2*ln(r.Theta))
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

// ln has the same bits on every architecture, which math.Log does not guarantee.
func ln(x float64) float64 { return float64(tensor.Log(float32(x))) }
