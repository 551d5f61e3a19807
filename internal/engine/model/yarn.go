package model

import "github.com/shoal-llm/shoal/internal/engine/model/rotary"

// yarn reads the parameters, with the reference's defaults. original is the default of the trained
// length.
func (f *Fields) yarn(r *rotary.Rope, original int) {
	r.Type = "yarn"
	r.Factor = f.Required("factor", 1, 1e6)
	r.OriginalMax = f.Size("original_max_position_embeddings", original, MaxPositions)
	r.Fast = f.Number("beta_fast", 32, 1e-3, 1e6)
	r.Slow = f.Number("beta_slow", 1, 1e-3, 1e6)
	r.Exact = !f.Bool("truncate", true)
	m := f.Number("mscale", 0, 0, 100)
	r.MScaleAll = f.Number("mscale_all_dim", 0, 0, 100)
	r.Amplitude = rotary.YarnScale(r.Factor, 1)
	if m != 0 && r.MScaleAll != 0 {
		r.Amplitude = rotary.YarnScale(r.Factor, m) / rotary.YarnScale(r.Factor, r.MScaleAll)
	}
	r.Amplitude = f.Number("attention_factor", r.Amplitude, 1e-3, 1e3)
}
