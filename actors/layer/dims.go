package layer

import (
	"math"

	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Dims are the sizes of one layer.
type Dims struct {
	Hidden, Heads, KVHeads, HeadDim, FFN int
	NormEps                              float32
	MoE                                  model.MoE    // of the layers with experts
	Score                                tensor.Score // of attention; without a scale, 1/sqrt(HeadDim)
	Ropes                                int          // rotations of a position that layers choose from; 0 counts as 1
	Vocab                                int          // columns of logits

	// Latent attention: KVHeads counts units of query heads, HeadDim is of queries.
	Latent    model.Latent
	LatentEps float32
}

// DimsOf are the sizes of a model's layers.
func DimsOf(c *model.Config) Dims {
	d := Dims{Hidden: c.Hidden, Heads: c.Heads, KVHeads: c.KVHeads, HeadDim: c.HeadDim, FFN: c.FFN, NormEps: c.NormEps, MoE: c.MoE,
		Score: tensor.Score{Scale: c.AttentionScale()}, Ropes: len(c.Rotations()), Vocab: c.Vocab}
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

// valueDim is the width of a head's attention output, as it is projected.
func (d Dims) valueDim() int {
	if d.Latent.Rank > 0 {
		return d.Latent.Value
	}
	return d.HeadDim
}

func (d Dims) attnCols() int { return d.Heads * d.valueDim() }

// ropeHalf is the number of rotated pairs of a head.
func (d Dims) ropeHalf() int {
	if d.Latent.Rank > 0 {
		return d.Latent.Rope / 2
	}
	return d.HeadDim / 2
}

// gateWidth is the distance between rows of gate and up projections.
func (d Dims) gateWidth() int { return stride(d.FFN) }

// stride is the distance between rows of n elements: one cache line more where n are
// whole pages. A tile writes a few columns of many rows at a time, and at distances of
// whole pages they would share the few places of one set of the cache.
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
