package model

import (
	"github.com/shoal-llm/shoal/internal/engine/model/rotary"
	"maps"
	"slices"
)

// readRopes reads rotations by kind of layer: c.Rope of the layers without a window, and c.LocalRope
// of those with one. full and local are the defaults of their bases. It returns false if
// rope_parameters does not have that form.
func (f *fields) readRopes(c *Config, full, local float64) bool {
	p := f.Object("rope_parameters")
	if p == nil || !p.has("full_attention") && !p.has("sliding_attention") {
		return false
	}
	read := func(key string, theta float64) (r rotary.Rope) {
		r.Theta = theta
		if in := p.Object(key); in != nil {
			r.Theta = in.Number("rope_theta", theta, 2, maxTheta)
			r = p.scaled(r, in, c)
		}
		return r
	}
	c.Rope, c.LocalRope = read("full_attention", full), read("sliding_attention", local)
	for _, key := range slices.Sorted(maps.Keys(p.raw)) {
		if key != "full_attention" && key != "sliding_attention" && p.has(key) {
			p.fail(key, ErrUnsupported, "is not known; with full_attention or sliding_attention, these are the only keys")
		}
	}
	f.take(p)
	f.refuseRotary(c, c.Rope.Theta)
	f.agree(f.Object("rope_scaling"), rotary.Rope{Theta: c.Rope.Theta}, c)
	c.MaxPositions = f.lengthen(&c.Rope, c.MaxPositions)
	return true
}
