package topology

import (
	"fmt"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Check verifies that a placement from the wire fits a model: every axis is tiled in rank order, in
// whole grains. Call it before allocating anything by the placement's numbers.
func (p Placement) Check(s Shape) error {
	axes := []struct {
		name  string
		total int
		grain int
		of    func(*Slice) Range
	}{
		{"kv heads", s.KVHeads, 1, func(x *Slice) Range { return x.KVHeads }},
		{"query rows", s.Heads * s.HeadDim, 1, func(x *Slice) Range { return x.Q }},
		{"key rows", s.keyRows(), 1, func(x *Slice) Range { return x.K }},
		{"value rows", s.keyRows(), 1, func(x *Slice) Range { return x.V }},
		{"output rows", s.Hidden, tensor.RowGrain, func(x *Slice) Range { return x.Out }},
		{"down rows", s.Hidden, tensor.RowGrain, func(x *Slice) Range { return x.Down }},
		{"ffn units", s.FFNUnits, 1, func(x *Slice) Range { return x.FFNUnits }},
		{"ffn columns", s.FFN, 1, func(x *Slice) Range { return x.FFN }},
		{"vocabulary rows", s.Vocab, tensor.RowGrain, func(x *Slice) Range { return x.Vocab }},
	}
	if len(p.Slices) == 0 {
		return ErrNoMembers
	}
	for _, a := range axes {
		at := 0
		for i := range p.Slices {
			r := a.of(&p.Slices[i])
			if r.Lo != at || r.Hi < r.Lo || r.Hi > a.total || (r.Hi%a.grain != 0 && r.Hi != a.total) {
				return fmt.Errorf("topology: rank %d owns %s [%d,%d): want a run from %d within %d, in whole grains of %d",
					i, a.name, r.Lo, r.Hi, at, a.total, a.grain)
			}
			at = r.Hi
		}
		if at != a.total {
			return fmt.Errorf("topology: %s are covered up to %d of %d", a.name, at, a.total)
		}
	}
	for i := range p.Slices {
		x := &p.Slices[i]
		if s.Latent > 0 {
			width := s.Heads / s.KVHeads * s.HeadDim
			if want := (Range{Lo: x.KVHeads.Lo * width, Hi: x.KVHeads.Hi * width}); x.Q != want {
				return fmt.Errorf("topology: rank %d owns query rows [%d,%d), those of its heads are [%d,%d)", i, x.Q.Lo, x.Q.Hi, want.Lo, want.Hi)
			}
		}
		if want := (Range{Lo: s.FFNUnitStart(x.FFNUnits.Lo), Hi: s.FFNUnitStart(x.FFNUnits.Hi)}); x.FFN != want {
			return fmt.Errorf("topology: rank %d owns ffn columns [%d,%d), its units are [%d,%d)", i, x.FFN.Lo, x.FFN.Hi, want.Lo, want.Hi)
		}
	}
	return nil
}
