package model

import (
	"maps"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/model/rotary"
)

// ReadRopes reads rotations by kind of layer: c.Rope of the layers without a window, and c.LocalRope
// of those with one. full and local are the bases of rotations that state none. It returns false if
// rope_parameters does not have that form.
func (f *Fields) ReadRopes(c *Config, full, local float64) bool {
	p := f.Object("rope_parameters")
	if p == nil || !p.Has("full_attention") && !p.Has("sliding_attention") {
		return false
	}
	read := func(key string, theta float64) (r rotary.Rope) {
		r.Theta = theta
		if in := p.Object(key); in != nil {
			r.Theta = in.Number("rope_theta", theta, 2, MaxTheta)
			r = p.scaled(r, in, c)
		}
		return r
	}
	c.Rope, c.LocalRope = read("full_attention", full), read("sliding_attention", local)
	for _, key := range slices.Sorted(maps.Keys(p.Raw)) {
		if key != "full_attention" && key != "sliding_attention" && p.Has(key) {
			p.Refuse(key, "is not known; with full_attention or sliding_attention, these are the only keys")
		}
	}
	f.Take(p)
	f.RefuseRotary(c, c.Rope.Theta)
	f.agree(f.Object("rope_scaling"), rotary.Rope{Theta: c.Rope.Theta}, c)
	c.MaxPositions = f.lengthen(&c.Rope, c.MaxPositions)
	return true
}
