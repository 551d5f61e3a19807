package model

import (
	"cmp"
	"maps"
	"reflect"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/model/rotary"
)

// InvFreq returns the angles per position in radians, one for each of the RopeDim/2 pairs.
func (c *Config) InvFreq() []float64 { return c.padded(c.Rope.InvFreq(c.rotated())) }

const MaxTheta = 1e12

// ReadRope reads c.Rope in the forms of transformers 4 (rope_theta and rope_scaling) and 5
// (rope_parameters holds both), and extends the context by Rope.Context. If a file has both forms,
// they must agree.
func ReadRope(f *Fields, c *Config, defaultTheta float64) {
	r := rotary.Rope{Theta: f.Number("rope_theta", defaultTheta, 2, MaxTheta)}
	s, p := f.Object("rope_scaling"), f.Object("rope_parameters")
	if p != nil {
		theta := p.Number("rope_theta", r.Theta, 2, MaxTheta)
		if f.Has("rope_theta") && theta != r.Theta {
			p.Fail("rope_theta", ErrFormat, "%g differs from the other rope_theta, %g", theta, r.Theta)
		}
		r.Theta = theta
	}
	f.RefuseRotary(c, r.Theta)
	c.Rope = f.scaled(r, s, c)
	if p != nil {
		c.Rope = f.scaled(r, p, c)
	}
	f.agree(s, r, c)
	c.MaxPositions = f.lengthen(&c.Rope, c.MaxPositions)
}

// agree refuses a rope_scaling that differs from rope_parameters.
func (f *Fields) agree(scaling *Fields, base rotary.Rope, c *Config) {
	if scaling == nil || !f.Has("rope_parameters") || f.Err != nil {
		return
	}
	if other := f.scaled(base, scaling, c); f.Err == nil && !reflect.DeepEqual(other, c.Rope) {
		f.Fail("rope_parameters", ErrFormat, "differs from rope_scaling; keep one of them")
	}
}

// scaled is r with the scaling of an object of the config; nil: r itself.
func (f *Fields) scaled(r rotary.Rope, in *Fields, c *Config) rotary.Rope {
	if in != nil {
		original := 0
		if f.Has("original_max_position_embeddings") {
			original = f.Size("original_max_position_embeddings", 1, MaxPositions)
		}
		in.scaling(&r, c, original)
		in.RefuseRotary(c, r.Theta)
		f.Take(in)
	}
	return r
}

// lengthen is Context, up to the limit of all lengths.
func (f *Fields) lengthen(r *rotary.Rope, positions int) int {
	n := r.Context(positions)
	if n > MaxPositions {
		f.Fail("rope_scaling", ErrOutOfRange, "factor %g times %d tokens is a context of more than %d", r.Factor, r.OriginalMax, MaxPositions)
	}
	return n
}

// ropeKind returns the key of an object that names its extension.
func (s *Fields) ropeKind() string {
	if s.Has("rope_type") {
		return "rope_type"
	}
	return "type"
}

// scaling reads the extension of a rotary embedding. original is the trained length given outside
// the object; 0: none.
func (s *Fields) scaling(r *rotary.Rope, c *Config, original int) {
	key := s.ropeKind()
	for _, name := range slices.Sorted(maps.Keys(s.Raw)) {
		if s.Raw[name][0] == '{' {
			s.Refuse(name, "is an object; rotary embeddings of their own for kinds of layers are not implemented for this family")
		}
	}
	kind, trained := rotary.LongRope, cmp.Or(original, c.MaxPositions)
	// Versions of transformers differ in which of two lengths counts.
	const length = "original_max_position_embeddings"
	if inner := s.Size(length, trained, MaxPositions); original > 0 && inner != original && !s.isLongRope(key, c) {
		s.Fail(length, ErrFormat, "%d differs from the %d outside; keep one of them", inner, original)
	}
	if !s.isLongRope(key, c) {
		kind = s.OneOf(key, "default", "default", "linear", "llama3", "yarn")
	}
	switch kind {
	case rotary.LongRope:
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
		r.OriginalMax = s.Size("original_max_position_embeddings", trained, MaxPositions)
		if s.Err == nil && r.HighFreq < r.LowFreq {
			s.Fail("high_freq_factor", ErrFormat, "%g is below low_freq_factor %g", r.HighFreq, r.LowFreq)
		}
	}
	for key, neutral := range map[string]float64{GrowthKey: 0, "extrapolation_factor": 1, "attn_factor": 1} {
		if v := s.Number(key, neutral, -1e300, 1e300); v != neutral && !c.implements(key) {
			s.Refuse(key, "%g is not implemented; only %g, which changes nothing, is", v, neutral)
		}
	}
}
