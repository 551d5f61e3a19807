package model

import (
	"slices"
	"strings"
)

// refuseRotary refuses keys of an object that change the rotation of heads and that no family here
// implements, unless their values have no effect.
func (f *fields) refuseRotary(c *Config, theta float64) {
	width := c.HeadDim
	if width == 0 { // latent attention rotates a separate part
		width = f.Size("qk_rope_head_dim", 64, maxHeadDim)
	}
	for _, key := range []string{partialKey, "rotary_pct", "rope_pct"} {
		if part := f.Number(key, 1, 0, 1); part != 1 && !c.implements(key) {
			f.fail(key, ErrUnsupported, "%g: heads are rotated whole", part)
		}
	}
	for _, key := range []string{"rotary_dim", "rotary_ndims"} {
		if n := f.Number(key, float64(width), -1e300, 1e300); n != float64(width) {
			f.fail(key, ErrUnsupported, "%g: heads are rotated whole, which is %d elements", n, width)
		}
	}
	for _, key := range []string{"rotary_emb_base", "rotary_base", "rope_base", "rope_local_base_freq", "local_rope_theta", "global_rope_theta"} {
		if key == "rope_local_base_freq" && c.Architecture == gemma3 && !strings.Contains(f.prefix, "rope_") {
			continue // readGemma3 reads it from the config itself
		}
		if base := f.Number(key, theta, -1e300, 1e300); base != theta && base != 0 {
			f.fail(key, ErrUnsupported, "%g: this family has one base of rotary positions, rope_theta %g", base, theta)
		}
	}
	f.refuseNoRope(c)
	for _, key := range []string{"mrope_section", "short_factor", "long_factor"} {
		var list []float64
		f.get(key, &list, "a list of numbers")
		if key != "mrope_section" && f.isLongRope(f.ropeKind(), c) {
			continue // longRope reads them
		}
		if slices.ContainsFunc(list, func(x float64) bool { return key == "mrope_section" || x != 1 }) {
			f.fail(key, ErrUnsupported, "%s: parts of a head with positions or frequencies of their own are not implemented", clip(string(f.raw[key])))
		}
	}
	if f.Bool("mrope_interleaved", false) {
		f.fail("mrope_interleaved", ErrUnsupported, "true: parts of a head with positions of their own are not implemented")
	}
}

// partialKey is the setting of heads that are rotated in part.
const partialKey = "partial_rotary_factor"

// readRotated reads which part of a head rotates, in the forms of transformers 4 and 5: the first
// elements.
func (c *Config) readRotated(f *fields, part float64) {
	given := f.has(partialKey)
	part = f.Number(partialKey, part, 0, 1)
	for _, key := range []string{"rope_scaling", "rope_parameters"} {
		if in := f.Object(key); in != nil && in.has(partialKey) {
			inner := in.Number(partialKey, part, 0, 1)
			if given && inner != part {
				in.fail(partialKey, ErrFormat, "%g differs from the %g outside", inner, part)
			}
			f.take(in)
			given, part = true, inner
		}
	}
	n := int(part * float64(c.HeadDim))
	switch {
	case f.err != nil:
	case n < 2 || n%2 != 0:
		f.fail(partialKey, ErrUnsupported, "%g: %d of %d elements of a head rotate; rotary positions need pairs", part, n, c.HeadDim)
	case n < c.HeadDim:
		c.Rotated = n
	}
}

// refuseNoRope refuses layers without rotary positions, see readUnrotated.
func (f *fields) refuseNoRope(c *Config) {
	if c.implements("no_rope_layers") {
		return
	}
	var rotates []float64
	f.get("no_rope_layers", &rotates, "a list with 0 or 1 for each layer")
	if slices.ContainsFunc(rotates, func(x float64) bool { return x != 1 }) {
		f.fail("no_rope_layers", ErrUnsupported, "%s: every layer rotates here, which is a list of 1", clip(string(f.raw["no_rope_layers"])))
	}
	if n := f.Index("no_rope_layer_interval", 0, maxLayers); n > 0 && n <= c.Layers && len(rotates) == 0 {
		f.fail("no_rope_layer_interval", ErrUnsupported, "%d: every layer rotates here", n)
	}
}

// readUnrotated reads which layers have no rotary positions. no_rope_layers has 1 for each layer
// that rotates and 0 for others. Without it, layers whose number, counted from 1, is a multiple of
// no_rope_layer_interval do not rotate; interval is its default.
func readUnrotated(f *fields, c *Config, interval int) {
	var rotates []int
	f.get("no_rope_layers", &rotates, "a list with 0 or 1 for each layer")
	interval = f.Size("no_rope_layer_interval", interval, maxLayers)
	if len(rotates) > 0 && len(rotates) < c.Layers {
		f.fail("no_rope_layers", ErrFormat, "%d entries for %d layers", len(rotates), c.Layers)
	}
	for i := range c.Layers {
		switch {
		case f.err != nil:
			return
		case len(rotates) == 0 && (i+1)%interval == 0, len(rotates) > 0 && rotates[i] == 0:
			c.Unrotated = append(c.Unrotated, i)
		case len(rotates) > 0 && rotates[i] != 1:
			f.fail("no_rope_layers", ErrFormat, "layer %d: %d is neither 0 nor 1", i, rotates[i])
		}
	}
}

// implements reports whether the family reads a setting of rotary positions itself.
func (c *Config) implements(key string) bool {
	a, ok := lookup(c.Architecture)
	return ok && slices.Contains(a.rotary, key)
}
