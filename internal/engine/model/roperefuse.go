package model

import (
	"slices"
	"strings"
)

// RefuseRotary refuses keys of an object that change the rotation of heads and that no family here
// implements, unless their values have no effect.
func (f *Fields) RefuseRotary(c *Config, theta float64) {
	width := c.HeadDim
	if width == 0 { // latent attention rotates a separate part
		width = f.Size("qk_rope_head_dim", 64, MaxHeadDim)
	}
	for _, key := range []string{PartialKey, "rotary_pct", "rope_pct"} {
		if part := f.Number(key, 1, 0, 1); part != 1 && !c.implements(key) {
			f.Refuse(key, "%g: heads are rotated whole", part)
		}
	}
	for _, key := range []string{"rotary_dim", "rotary_ndims"} {
		if n := f.Number(key, float64(width), -1e300, 1e300); n != float64(width) {
			f.Refuse(key, "%g: heads are rotated whole, which is %d elements", n, width)
		}
	}
	for _, key := range []string{"rotary_emb_base", "rotary_base", "rope_base", "rope_local_base_freq",
		"local_rope_theta", "global_rope_theta"} {
		if key == "rope_local_base_freq" && c.implements(key) && !strings.Contains(f.prefix, "rope_") {
			continue // the family reads it from the config itself
		}
		if base := f.Number(key, theta, -1e300, 1e300); base != theta && base != 0 {
			f.Refuse(key, "%g: this family has one base of rotary positions, rope_theta %g", base, theta)
		}
	}
	f.refuseNoRope(c)
	for _, key := range []string{"mrope_section", "short_factor", "long_factor"} {
		var list []float64
		f.Get(key, &list, "a list of numbers")
		if key != "mrope_section" && f.isLongRope(f.ropeKind(), c) {
			continue // longRope reads them
		}
		if slices.ContainsFunc(list, func(x float64) bool { return key == "mrope_section" || x != 1 }) {
			f.Refuse(key, "%s: parts of a head with positions or frequencies of their own are not implemented", Clip(string(f.Raw[key])))
		}
	}
	if f.Bool("mrope_interleaved", false) {
		f.Refuse("mrope_interleaved", "true: parts of a head with positions of their own are not implemented")
	}
}

// PartialKey is the setting of heads that are rotated in part.
const PartialKey = "partial_rotary_factor"

// ReadRotated reads which part of a head rotates, in the forms of transformers 4 and 5: the first
// elements.
func (c *Config) ReadRotated(f *Fields, part float64) {
	given := f.Has(PartialKey)
	part = f.Number(PartialKey, part, 0, 1)
	for _, key := range []string{"rope_scaling", "rope_parameters"} {
		if in := f.Object(key); in != nil && in.Has(PartialKey) {
			inner := in.Number(PartialKey, part, 0, 1)
			if given && inner != part {
				in.Fail(PartialKey, ErrFormat, "%g differs from the %g outside", inner, part)
			}
			f.Take(in)
			given, part = true, inner
		}
	}
	n := int(part * float64(c.HeadDim))
	switch {
	case f.Err != nil:
	case n < 2 || n%2 != 0:
		f.Refuse(PartialKey, "%g: %d of %d elements of a head rotate; rotary positions need pairs", part, n, c.HeadDim)
	case n < c.HeadDim:
		c.Rotated = n
	}
}

// refuseNoRope refuses layers without rotary positions, see ReadUnrotated.
func (f *Fields) refuseNoRope(c *Config) {
	if c.implements("no_rope_layers") {
		return
	}
	var rotates []float64
	f.Get("no_rope_layers", &rotates, "a list with 0 or 1 for each layer")
	if slices.ContainsFunc(rotates, func(x float64) bool { return x != 1 }) {
		f.Refuse("no_rope_layers", "%s: every layer rotates here, which is a list of 1", Clip(string(f.Raw["no_rope_layers"])))
	}
	if n := f.Index("no_rope_layer_interval", 0, MaxLayers); n > 0 && n <= c.Layers && len(rotates) == 0 {
		f.Refuse("no_rope_layer_interval", "%d: every layer rotates here", n)
	}
}

// ReadUnrotated reads which layers have no rotary positions. no_rope_layers has 1 for each layer
// that rotates and 0 for others. Without it, layers whose number, counted from 1, is a multiple of
// no_rope_layer_interval do not rotate; interval is its default.
func ReadUnrotated(f *Fields, c *Config, interval int) {
	var rotates []int
	f.Get("no_rope_layers", &rotates, "a list with 0 or 1 for each layer")
	interval = f.Size("no_rope_layer_interval", interval, MaxLayers)
	if len(rotates) > 0 && len(rotates) < c.Layers {
		f.Fail("no_rope_layers", ErrFormat, "%d entries for %d layers", len(rotates), c.Layers)
	}
	for i := range c.Layers {
		switch {
		case f.Err != nil:
			return
		case len(rotates) == 0 && (i+1)%interval == 0, len(rotates) > 0 && rotates[i] == 0:
			c.Unrotated = append(c.Unrotated, i)
		case len(rotates) > 0 && rotates[i] != 1:
			f.Fail("no_rope_layers", ErrFormat, "layer %d: %d is neither 0 nor 1", i, rotates[i])
		}
	}
}

// implements reports whether the family reads a setting of rotary positions itself.
func (c *Config) implements(key string) bool {
	a, ok := Lookup(c.Architecture)
	return ok && slices.Contains(a.Rotary, key)
}
