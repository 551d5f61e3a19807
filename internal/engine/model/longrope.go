package model

import (
	"cmp"
	"math"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/model/rotary"
)

// LongRoPE (Ding et al., arXiv 2402.13753): the frequency of each pair is divided by a factor. There
// are two lists of factors, one for the original context and one for longer ones.
//
// transformers chooses the list by the length of each call and keeps the cached keys of earlier
// calls. Here Config.Serve chooses once for all positions, as in vLLM and llama.cpp: otherwise a
// token would depend on how its prompt was divided into steps.

// isLongRope reports whether an object means longrope, of a family that implements it. The first Phi-3
// files have other names for it, which transformers also accepts.
func (f *Fields) isLongRope(key string, c *Config) bool {
	return c.implements("long_factor") && slices.Contains([]string{rotary.LongRope, "su", "yarn"}, f.Text(key, ""))
}

// longRope reads the parameters, with the reference's defaults. original is the trained length given
// outside the object, which takes precedence; 0: none.
func (f *Fields) longRope(r *rotary.Rope, c *Config, original int) {
	r.Type = rotary.LongRope
	r.OriginalMax = cmp.Or(original, f.Size("original_max_position_embeddings", 4096, MaxPositions))
	factor := f.Number("factor", float64(c.MaxPositions)/float64(r.OriginalMax), 1e-6, 1e6)
	r.Amplitude = 1
	if factor > 1 && r.OriginalMax > 1 {
		r.Amplitude = math.Sqrt(1 + float64(rotary.Log(factor)/rotary.Log(float64(r.OriginalMax))))
	}
	r.Amplitude = f.Number("attention_factor", r.Amplitude, 1e-3, 1e3)
	r.Short = f.divisors("short_factor", c.rotated()/2)
	r.Long = f.divisors("long_factor", c.rotated()/2)
	for _, key := range []string{"short_mscale", "long_mscale"} { // Phi-3.5-MoE
		if v := f.Number(key, r.Amplitude, -1e300, 1e300); v != r.Amplitude {
			f.Refuse(key, "%g is not implemented; cosine and sine are multiplied by %g", v, r.Amplitude)
		}
	}
	r.Beyond = c.MaxPositions > r.OriginalMax
}

// divisors reads a list with one divisor for each pair that rotates.
func (f *Fields) divisors(key string, pairs int) []float64 {
	var list []float64
	if !f.Get(key, &list, "a list of numbers") {
		f.Fail(key, ErrMissing, "missing")
		return nil
	}
	if len(list) != pairs {
		f.Fail(key, ErrFormat, "%d numbers for the %d pairs of a head that rotate", len(list), pairs)
		return nil
	}
	for i, v := range list {
		if !(v >= 1e-6 && v <= 1e6) {
			f.Fail(key, ErrOutOfRange, "element %d, %g, is outside 1e-06..1e+06", i, v)
			return nil
		}
	}
	return list
}

// ByContext reports whether rotations depend on the served context, see Serve.
func (c *Config) ByContext() bool { return c.Rope.Type == rotary.LongRope }

// Serve sets the served context: the longest sequence in tokens, or 0 for MaxPositions. With
// longrope it chooses the long factors if the context is longer than the original one, otherwise the
// short factors. Other models have no such choice. All nodes must serve the same context.
func (c *Config) Serve(context int) {
	if c.ByContext() {
		c.Rope.Beyond = cmp.Or(context, c.MaxPositions) > c.Rope.OriginalMax
	}
}
