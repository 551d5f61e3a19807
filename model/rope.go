package model

import (
	"math"
	"math/big"
)

// Rope is the rotary position embedding (Su et al., RoFormer, arXiv
// 2104.09864) and how it was stretched to longer contexts.
type Rope struct {
	Theta float64
	Type  string // "" as trained; "linear" (Chen et al., arXiv 2306.15595); "llama3" (Llama 3.1); "yarn"; "divided"

	Factor      float64 // linear, llama3, yarn: how many times longer
	LowFreq     float64 // llama3: low_freq_factor; a wave longer than OriginalMax/LowFreq is stretched fully
	HighFreq    float64 // llama3: high_freq_factor; a wave shorter than OriginalMax/HighFreq is kept
	OriginalMax int     // llama3, yarn: the context before stretching, in tokens

	Fast      float64 `json:",omitempty"` // yarn: beta_fast; pairs that turn more often in OriginalMax tokens are kept
	Slow      float64 `json:",omitempty"` // yarn: beta_slow; pairs that turn less often are stretched fully
	Exact     bool    `json:",omitempty"` // yarn: truncate false; the bounds between are not rounded to whole pairs
	Amplitude float64 `json:",omitempty"` // yarn: multiplies cosine and sine; 0 counts as 1
	MScaleAll float64 `json:",omitempty"` // yarn: mscale_all_dim, see AttentionScale

	Divisors []float64 `json:",omitempty"` // divided: of each pair's angle (dim/2), as GGUF writes llama3 down
}

// InvFreq returns the angles per position, one for each of the RopeDim/2
// pairs, in radians.
func (c *Config) InvFreq() []float64 { return c.Rope.InvFreq(c.RopeDim()) }

// InvFreq returns theta^(-2i/dim) for i < dim/2, scaled as Type says. dim is
// the number of rotated dimensions of a head.
//
// The powers are rounded correctly from 200-bit arithmetic and the scaling
// uses no operation that a compiler may fuse: machines of different
// architectures must rotate by the same bits, which math.Pow does not promise.
// PyTorch computes them in float32, with up to a few units of error there.
func (r Rope) InvFreq(dim int) []float64 {
	freq := powers(r.Theta, dim/2)
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
	case "divided":
		for i := range freq {
			freq[i] /= r.Divisors[i]
		}
	}
	return freq
}

// llama3 keeps the fast waves, stretches the slow ones by Factor, and blends
// linearly between.
func (r Rope) llama3(f float64) float64 {
	wave := 2 * math.Pi / f
	long := float64(r.OriginalMax) / r.LowFreq
	short := float64(r.OriginalMax) / r.HighFreq
	switch {
	case wave < short:
		return f
	case wave > long:
		return f / r.Factor
	}
	keep := (float64(r.OriginalMax)/wave - r.LowFreq) / (r.HighFreq - r.LowFreq)
	return float64((1-keep)*(f/r.Factor)) + float64(keep*f)
}

// powers returns theta^(-i/n) for i < n.
func powers(theta float64, n int) []float64 {
	const bits = 200
	num := func(x float64) *big.Float { return new(big.Float).SetPrec(bits).SetFloat64(x) }

	// Newton on x^n = 1/theta. The float64 guess may differ in its last bit
	// from machine to machine; three steps carry that difference below the
	// 200th bit.
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

const maxTheta = 1e12

// readRope understands transformers 4 (rope_theta beside rope_scaling) and 5
// (rope_parameters holding both).
func readRope(f *fields, defaultTheta float64) Rope {
	r := Rope{Theta: f.Number("rope_theta", defaultTheta, 2, maxTheta)}
	s := f.Object("rope_scaling")
	if p := f.Object("rope_parameters"); p != nil {
		if s != nil {
			f.fail("rope_parameters", ErrFormat, "given beside rope_scaling; keep one of them")
		}
		theta := p.Number("rope_theta", r.Theta, 2, maxTheta)
		if f.has("rope_theta") && theta != r.Theta {
			p.fail("rope_theta", ErrFormat, "%g differs from the rope_theta %g beside it", theta, r.Theta)
		}
		r.Theta, s = theta, p
	}
	if s != nil {
		s.scaling(&r)
		f.take(s)
	}
	return r
}

// rope reads an object of rope_parameters: the base and its scaling.
func (f *fields) rope(defaultTheta float64) Rope {
	r := Rope{Theta: f.Number("rope_theta", defaultTheta, 2, maxTheta)}
	f.scaling(&r)
	return r
}

// scaling reads how a rotary embedding was stretched.
func (s *fields) scaling(r *Rope) {
	key := "rope_type"
	if !s.has(key) {
		key = "type"
	}
	switch s.OneOf(key, "default", "default", "linear", "llama3", "yarn") {
	case "linear":
		r.Type = "linear"
		r.Factor = s.Required("factor", 1, 1e6)
	case "yarn":
		s.yarn(r)
	case "llama3":
		r.Type = "llama3"
		r.Factor = s.Required("factor", 1, 1e6)
		r.LowFreq = s.Required("low_freq_factor", 1e-3, 1e6)
		r.HighFreq = s.Required("high_freq_factor", 1e-3, 1e6)
		r.OriginalMax = s.Size("original_max_position_embeddings", 0, maxPositions)
		if s.err == nil && r.HighFreq <= r.LowFreq {
			s.fail("high_freq_factor", ErrFormat, "%g is not above low_freq_factor %g", r.HighFreq, r.LowFreq)
		}
	}
	if part := s.Number("partial_rotary_factor", 1, 0, 1); part != 1 {
		s.fail("partial_rotary_factor", ErrUnsupported, "%g: heads are rotated whole", part)
	}
}
