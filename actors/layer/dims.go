package layer

import (
	"math"

	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Dims are the dimensions of a layer.
type Dims struct {
	Hidden, Heads, KVHeads, HeadDim, FFN int
	NormEps                              float32
	MoE                                  model.MoE    // for layers with experts
	Score                                tensor.Score // of attention; a zero scale means 1/sqrt(HeadDim)
	Ropes                                int          // number of rotations that layers choose from; 0 counts as 1
	Vocab                                int          // number of logits
	Residual                             float32      // factor of what is added to the residual stream; 0 counts as 1

	// Latent attention: KVHeads counts groups ("units") of query heads, HeadDim is that of queries.
	Latent    model.Latent
	LatentEps float32
}

// DimsOf returns the dimensions of a model's layers.
func DimsOf(c *model.Config) Dims {
	d := Dims{Hidden: c.Hidden, Heads: c.Heads, KVHeads: c.KVHeads, HeadDim: c.HeadDim, FFN: c.FFN, NormEps: c.NormEps, MoE: c.MoE,
		Score: c.Score(), Ropes: len(c.Rotations()), Vocab: c.Vocab, Residual: c.Multipliers.Residual}
	if c.Latent.Rank > 0 {
		d.KVHeads, d.Latent, d.LatentEps = c.HeadUnits(), c.Latent, model.LatentNormEps
	}
	return d
}

func (d Dims) score() tensor.Score {
	s := d.Score
	if s.Scale == 0 {
		s.Scale = float32(1 / math.Sqrt(float64(d.HeadDim)))
	}
	s.Scale *= scaleError
	return s
}

// valueDim returns the width of a head's attention output after its value projection.
func (d Dims) valueDim() int {
	if d.Latent.Rank > 0 {
		return d.Latent.Value
	}
	return d.HeadDim
}

func (d Dims) attnCols() int { return d.Heads * d.valueDim() }

// ropeHalf returns the number of rotated pairs per head.
func (d Dims) ropeHalf() int {
	if d.Latent.Rank > 0 {
		return d.Latent.Rope / 2
	}
	return d.HeadDim / 2
}

// gateWidth returns the row stride of gate and up projections.
func (d Dims) gateWidth() int { return stride(d.FFN) }

// stride returns the row stride for n elements: one cache line is added if rows are whole pages. A tile
// writes a few columns of many rows at a time. At a stride of whole pages these addresses would
// compete for the ways of one cache set.
func stride(n int) int {
	const page, line = 1024, 16 // in float32
	if n%page == 0 {
		return n + line
	}
	return n
}

func (d Dims) group() int { return d.Heads / d.KVHeads }
func (d Dims) qCols() int { return d.Heads * d.HeadDim }
func (d Dims) kCols() int { return d.KVHeads * d.HeadDim }
