package model

import (
	"cmp"
	"maps"
	"math"
	"math/big"
	"reflect"
	"slices"
)

// Rope is the rotary position embedding (Su et al., RoFormer, arXiv 2104.09864) and its extension
// to longer contexts.
type Rope struct {
	Theta float64
	Type  string // "" as trained; "linear" (Chen et al., arXiv 2306.15595); "llama3" (Llama 3.1); "yarn"; "longrope"; "divided"; "proportional" (Gemma 4)

	Factor      float64 // linear, llama3, yarn: extension factor of the context
	LowFreq     float64 // llama3: low_freq_factor; longer waves than OriginalMax/LowFreq are fully stretched
	HighFreq    float64 // llama3: high_freq_factor; shorter waves than OriginalMax/HighFreq are kept
	OriginalMax int     // llama3, yarn, longrope: the original context in tokens

	Fast      float64 `json:",omitempty"` // yarn: beta_fast; pairs with more turns in OriginalMax tokens are kept
	Slow      float64 `json:",omitempty"` // yarn: beta_slow; pairs with fewer turns are fully stretched
	Exact     bool    `json:",omitempty"` // yarn: truncate false; the bounds of the ramp are not rounded to whole pairs
	Amplitude float64 `json:",omitempty"` // yarn, longrope: factor of cosine and sine; 0 counts as 1
	MScaleAll float64 `json:",omitempty"` // yarn: mscale_all_dim, see AttentionScale

	Part float64 `json:",omitempty"` // proportional: the share of the pairs that rotate, the first ones; angles are those of the whole head

	Divisors []float64 `json:",omitempty"` // divided: divisor of each pair's angle (dim/2), GGUF's form of llama3

	Short  []float64 `json:",omitempty"` // longrope: divisors within the original context (dim/2)
	Long   []float64 `json:",omitempty"` // longrope: divisors for longer contexts (dim/2)
	Beyond bool      `json:",omitempty"` // longrope: the served context is longer than OriginalMax, see Config.Serve
}

// InvFreq returns the angles per position in radians, one for each of the RopeDim/2 pairs.
func (c *Config) InvFreq() []float64 { return c.padded(c.Rope.InvFreq(c.rotated())) }

// InvFreq returns theta^(-2i/dim) for i < dim/2, scaled by Type. dim is the number of rotated
// elements of a head.
//
// The powers are correctly rounded from 200-bit arithmetic, and the scaling uses no operation that
// a compiler may fuse. Machines of different architectures must rotate by the same bits, which
// math.Pow does not guarantee. PyTorch computes them in float32, with errors of a few units there.
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
	case longRope:
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
	}
	keep := (float64(r.OriginalMax)/wave - r.LowFreq) / (r.HighFreq - r.LowFreq)
	return float64((1-keep)*(f/r.Factor)) + float64(keep*f)
}

// powers returns theta^(-i/n) for i < n.
func powers(theta float64, n int) []float64 {
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

const maxTheta = 1e12

// readRope reads c.Rope in the forms of transformers 4 (rope_theta and rope_scaling) and 5
// (rope_parameters holds both), and extends the context by Rope.Context. If a file has both forms,
// they must agree.
func readRope(f *fields, c *Config, defaultTheta float64) {
	r := Rope{Theta: f.Number("rope_theta", defaultTheta, 2, maxTheta)}
	s, p := f.Object("rope_scaling"), f.Object("rope_parameters")
	if p != nil {
		theta := p.Number("rope_theta", r.Theta, 2, maxTheta)
		if f.has("rope_theta") && theta != r.Theta {
			p.fail("rope_theta", ErrFormat, "%g differs from the other rope_theta, %g", theta, r.Theta)
		}
		r.Theta = theta
	}
	f.refuseRotary(c, r.Theta)
	c.Rope = f.scaled(r, s, c)
	if p != nil {
		c.Rope = f.scaled(r, p, c)
	}
	f.agree(s, r, c)
	c.MaxPositions = f.lengthen(&c.Rope, c.MaxPositions)
}

// agree refuses a rope_scaling that differs from rope_parameters.
func (f *fields) agree(scaling *fields, base Rope, c *Config) {
	if scaling == nil || !f.has("rope_parameters") || f.err != nil {
		return
	}
	if other := f.scaled(base, scaling, c); f.err == nil && !reflect.DeepEqual(other, c.Rope) {
		f.fail("rope_parameters", ErrFormat, "differs from rope_scaling; keep one of them")
	}
}

// scaled is r with the scaling of an object of the config; nil: r itself.
func (f *fields) scaled(r Rope, in *fields, c *Config) Rope {
	if in != nil {
		original := 0
		if f.has("original_max_position_embeddings") {
			original = f.Size("original_max_position_embeddings", 1, maxPositions)
		}
		in.scaling(&r, c, original)
		in.refuseRotary(c, r.Theta)
		f.take(in)
	}
	return r
}

// Context is the longest sequence that the embedding serves, for a model trained with the given
// length. Only yarn changes it: with other types max_position_embeddings is the extended length.
func (r Rope) Context(trained int) int {
	if r.Type != "yarn" {
		return trained
	}
	return max(trained, int(min(r.Factor*float64(r.OriginalMax), math.MaxInt32)))
}

// lengthen is Context, up to the limit of all lengths.
func (f *fields) lengthen(r *Rope, positions int) int {
	n := r.Context(positions)
	if n > maxPositions {
		f.fail("rope_scaling", ErrOutOfRange, "factor %g times %d tokens is a context of more than %d", r.Factor, r.OriginalMax, maxPositions)
	}
	return n
}

// ropeKind is the key of an object that names its extension.
func (s *fields) ropeKind() string {
	if s.has("rope_type") {
		return "rope_type"
	}
	return "type"
}

// scaling reads the extension of a rotary embedding. original is the trained length given outside
// the object; 0: none.
func (s *fields) scaling(r *Rope, c *Config, original int) {
	key := s.ropeKind()
	for _, name := range slices.Sorted(maps.Keys(s.raw)) {
		if s.raw[name][0] == '{' {
			s.fail(name, ErrUnsupported, "is an object; rotary embeddings of their own for kinds of layers are not implemented for this family")
		}
	}
	kind, trained := longRope, cmp.Or(original, c.MaxPositions)
	if !s.isLongRope(key, c) {
		kind = s.OneOf(key, "default", "default", "linear", "llama3", "yarn")
	}
	switch kind {
	case longRope:
		s.longRope(r, c, original)
	case "linear":
		r.Type = "linear"
		r.Factor = s.Required("factor", 1, 1e6)
	case "yarn":
		s.yarn(r, trained)
	case "llama3":
		r.Type = "llama3"
		r.Factor = s.Required("factor", 1, 1e6)
		r.LowFreq = s.Required("low_freq_factor", 1e-3, 1e6)
		r.HighFreq = s.Required("high_freq_factor", 1e-3, 1e6)
		r.OriginalMax = s.Size("original_max_position_embeddings", trained, maxPositions)
		if s.err == nil && r.HighFreq <= r.LowFreq {
			s.fail("high_freq_factor", ErrFormat, "%g is not above low_freq_factor %g", r.HighFreq, r.LowFreq)
		}
	}
	for key, neutral := range map[string]float64{growthKey: 0, "extrapolation_factor": 1, "attn_factor": 1} {
		if v := s.Number(key, neutral, -1e300, 1e300); v != neutral && !c.implements(key) {
			s.fail(key, ErrUnsupported, "%g is not implemented; only %g, which changes nothing, is", v, neutral)
		}
	}
}
