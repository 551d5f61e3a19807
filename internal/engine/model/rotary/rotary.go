// Package rotary calculates rotary position embeddings: the angle per position of each pair of a
// head, and its extensions to longer contexts.
package rotary

import (
	"math"
	"math/big"
)

// LongRope is the type of LongRoPE (Ding et al., arXiv 2402.13753).
const LongRope = "longrope"

// Rope is the rotary position embedding (Su et al., RoFormer, arXiv 2104.09864) and its extension
// to longer contexts.
type Rope struct {
	Theta float64
	// "" as trained; "linear" (Chen et al., arXiv 2306.15595); "llama3" (Llama 3.1); "yarn"; "longrope"; "divided"; "proportional" (Gemma 4)
	Type string

	Factor      float64 // linear, llama3, yarn: extension factor of the context
	LowFreq     float64 // llama3: low_freq_factor; longer waves than OriginalMax/LowFreq are fully stretched
	HighFreq    float64 // llama3: high_freq_factor; shorter waves than OriginalMax/HighFreq are kept
	OriginalMax int     // llama3, yarn, longrope: the original context in tokens

	Fast      float64 `json:",omitempty"` // yarn: beta_fast; pairs with more turns in OriginalMax tokens are kept
	Slow      float64 `json:",omitempty"` // yarn: beta_slow; pairs with fewer turns are fully stretched
	Exact     bool    `json:",omitempty"` // yarn: truncate false; the bounds of the ramp are not rounded to whole pairs
	Amplitude float64 `json:",omitempty"` // yarn, longrope: factor of cosine and sine; 0 counts as 1
	MScaleAll float64 `json:",omitempty"` // yarn: mscale_all_dim, see AttentionScale

	Part float64 `json:",omitempty"` // proportional: the share of the pairs that rotate, the first ones; the whole head's width gives the angles

	Divisors []float64 `json:",omitempty"` // divided: divisor of each pair's angle (dim/2), GGUF's form of llama3

	Short  []float64 `json:",omitempty"` // longrope: divisors within the original context (dim/2)
	Long   []float64 `json:",omitempty"` // longrope: divisors for longer contexts (dim/2)
	Beyond bool      `json:",omitempty"` // longrope: the served context is longer than OriginalMax, see Config.Serve
}

// InvFreq returns theta^(-2i/dim) for i < dim/2, scaled by Type. dim is the number of rotated
// elements of a head.
//
// The powers are correctly rounded from 200-bit arithmetic, and the scaling uses no operation that
// a compiler may fuse. Machines of different architectures must rotate by the same bits, which
// math.Pow does not guarantee. PyTorch computes them in float32, with errors of a few units there.
func (r Rope) InvFreq(dim int) []float64 {
	freq := Powers(r.Theta, dim/2)
	switch r.Type {
	case "linear":
		for i := range freq {
			freq[i] /= r.Factor
		}
	case "llama3":
		for i := range freq {
			freq[i] = r.llama3(freq[i])
		}
	case "yarn":
		r.yarn(freq)
	case "proportional":
		rotated := int(r.Part*float64(dim)/2 + 1e-6)
		for i := range freq {
			if freq[i] /= r.Factor; i >= rotated {
				freq[i] = 0
			}
		}
	case "divided":
		for i := range freq {
			freq[i] /= r.Divisors[i]
		}
	case LongRope:
		divisors := r.Short
		if r.Beyond {
			divisors = r.Long
		}
		for i := range freq {
			freq[i] /= divisors[i]
		}
	}
	return freq
}

// llama3 keeps the fast waves, stretches the slow ones by Factor, and blends linearly in between.
func (r Rope) llama3(f float64) float64 {
	wave := 2 * math.Pi / f
	long := float64(r.OriginalMax) / r.LowFreq
	short := float64(r.OriginalMax) / r.HighFreq
	switch {
	case wave < short:
		return f
	case wave > long:
		return f / r.Factor
	case long == short: // there are no waves in between, as in Llama 4 Scout
		return f
	}
	keep := (float64(r.OriginalMax)/wave - r.LowFreq) / (r.HighFreq - r.LowFreq)
	return float64((1-keep)*(f/r.Factor)) + float64(keep*f)
}

// Powers returns theta^(-i/n) for i < n.
func Powers(theta float64, n int) []float64 {
	const bits = 200
	num := func(x float64) *big.Float { return new(big.Float).SetPrec(bits).SetFloat64(x) }

	// Newton's method on x^n = 1/theta. The float64 guess may differ in its last bit between
	// machines; three steps reduce that difference below the 200th bit.
	target := num(1)
	target.Quo(target, num(theta))
	x := num(math.Pow(theta, -1/float64(n)))
	for range 3 {
		p := intPow(x, n-1)                 // x^(n-1)
		e := num(0).Mul(p, x)               // x^n
		e.Sub(e, target)                    // x^n - target
		e.Quo(e, p.Mul(p, num(float64(n)))) // / (n x^(n-1))
		x.Sub(x, e)
	}
	out := make([]float64, n)
	y := num(1)
	for i := range out {
		out[i], _ = y.Float64()
		y.Mul(y, x)
	}
	return out
}

func intPow(x *big.Float, n int) *big.Float {
	y := new(big.Float).SetPrec(x.Prec()).SetInt64(1)
	for b := new(big.Float).Copy(x); n > 0; n >>= 1 {
		if n&1 == 1 {
			y.Mul(y, b)
		}
		b.Mul(b, b)
	}
	return y
}

// Context returns the longest sequence that the embedding serves, for a model trained with the given
// length. Only yarn changes it: with other types max_position_embeddings is the extended length.
func (r Rope) Context(trained int) int {
	if r.Type != "yarn" {
		return trained
	}
	return max(trained, int(min(r.Factor*float64(r.OriginalMax), math.MaxInt32)))
}
