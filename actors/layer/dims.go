package layer

import (
	"math"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/kvcache/states"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/model/recurrent"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// Dims are the dimensions of a layer.
type Dims struct {
	Hidden, Heads, KVHeads, HeadDim, FFN int
	NormEps                              float32
	MoE                                  model.MoE    // for layers with experts
	Score                                tensor.Score // of attention; a zero scale means 1/sqrt(HeadDim)
	Growth                               model.Growth // of queries with their position
	Ropes                                int          // number of rotations that layers choose from; 0 counts as 1
	Vocab                                int          // number of logits
	QKNormOf                             model.QKNormOf
	MeanNorm                             bool              // norms of the residual stream subtract the mean
	Parallel                             bool              // the FFN reads the norm that attention reads
	PostNorm                             bool              // norms replace the residual stream that they read
	PerLayer                             int               // width of each layer's own input; 0: none
	Layers                               int               // with PerLayer: number of layers
	Activation                           tensor.Activation // of experts and of per-layer inputs

	// Widths has the widths of each layer, if layers differ; nil: all layers have KVHeads, HeadDim and FFN.
	// With Widths, KVHeads and HeadDim are common divisors: KVHeads is the number of runs of heads
	// that sockets divide in every layer.
	Widths []Widths
	units  int // of the widths of a layer: KVHeads of the common divisors

	Recurrent  states.Shape // of layers with a recurrent state
	Delta      recurrent.Mixer
	OutputGate bool // attention has an output gate
	NonCausal  bool // every token attends to the whole text

	// Latent attention: KVHeads counts groups ("units") of query heads, HeadDim is the width of a query head.
	Latent    model.Latent
	LatentEps float32
}

// DimsOf returns the dimensions of a model's layers.
func DimsOf(c *model.Config) Dims {
	d := Dims{Hidden: c.Hidden, Heads: c.Heads, KVHeads: c.KVHeads, HeadDim: c.HeadDim, FFN: c.FFN, NormEps: c.NormEps, MoE: c.MoE,
		Score: c.Score(), Ropes: c.RotationCount(), Growth: c.Growth, Vocab: c.Vocab,
		Recurrent: RecurrentOf(c), Delta: c.Delta, OutputGate: c.OutputGate, NonCausal: c.NonCausal,
		QKNormOf: c.QKNormOf, MeanNorm: c.MeanNorm, Parallel: c.Parallel, PostNorm: c.PostNorm}
	d.PerLayer, d.Layers, d.Activation = c.PerLayer.Width, c.Layers, c.Activation
	if c.Global.Dim > 0 || c.WideFFN {
		d.KVHeads, d.HeadDim = c.KVUnits(), c.UnitDim()
		for i := range c.Layers {
			if w := widthsOf(c, i); !slices.Contains(d.Widths, w) {
				d.Widths = append(d.Widths, w)
			}
		}
	}
	if c.Latent.Rank > 0 {
		d.KVHeads, d.Latent, d.LatentEps = c.HeadUnits(), c.Latent, model.LatentNormEps
	}
	return d
}

// Widths are the widths of a layer that may differ from those of others.
type Widths struct{ KVHeads, HeadDim, FFN int }

func widthsOf(c *model.Config, layer int) Widths {
	s := c.KVOf(layer)
	return Widths{s.Heads, s.Dim, c.FFNOf(layer)}
}

// WidthsOf returns the index in Dims.Widths of the widths of a layer.
func WidthsOf(c *model.Config, layer int) int {
	return max(0, slices.Index(DimsOf(c).Widths, widthsOf(c, layer)))
}

// of returns the dimensions with the widths of index i.
func (d *Dims) of(i int) Dims {
	one := *d
	if d.Widths != nil {
		w := d.Widths[i]
		one.units = d.KVHeads
		one.KVHeads, one.HeadDim, one.FFN = w.KVHeads, w.HeadDim, w.FFN
	}
	return one
}

// kinds returns the number of different widths.
func (d *Dims) kinds() int { return max(1, len(d.Widths)) }

// maxOver returns the largest result of f over the widths of all layers.
func (d *Dims) maxOver(f func(*Dims) int) (n int) {
	for i := range d.kinds() {
		one := d.of(i)
		n = max(n, f(&one))
	}
	return n
}

// slice converts a socket's slice of the common divisors to one of the widths of index i. Runs of
// heads, rows of heads and units of the FFN grow in proportion, so they tile the layer as they tile
// the divisors.
func (d *Dims) slice(s topology.Slice, i int) topology.Slice {
	if d.Widths == nil {
		return s
	}
	w := d.Widths[i]
	times := func(r topology.Range, n int) topology.Range { return topology.Range{Lo: r.Lo * n, Hi: r.Hi * n} }
	heads, dim := w.KVHeads/d.KVHeads, w.HeadDim/d.HeadDim
	s.KVHeads, s.Q = times(s.KVHeads, heads), times(s.Q, dim)
	s.K, s.V = times(s.K, heads*dim), times(s.V, heads*dim)
	from, to := tensor.Units(d.FFN), tensor.Units(w.FFN)
	s.FFNUnits = topology.Range{Lo: s.FFNUnits.Lo * to / from, Hi: s.FFNUnits.Hi * to / from}
	s.FFN = tensor.UnitsSpan(w.FFN, s.FFNUnits.Lo, s.FFNUnits.Hi)
	return s
}

// SliceOf is slice for a layer of a model.
func SliceOf(c *model.Config, layer int, s topology.Slice) topology.Slice {
	d := DimsOf(c)
	return d.slice(s, WidthsOf(c, layer))
}

// AttentionScore returns the score of a query with a key, of all heads.
func (d *Dims) AttentionScore() tensor.Score { return d.score() }

func (d *Dims) score() tensor.Score {
	s := d.Score
	if s.Scale == 0 {
		s.Scale = float32(1 / math.Sqrt(float64(d.HeadDim)))
	}
	s.Scale *= model.ScaleError
	return s
}

// valueDim returns the width of a head's attention output after its value projection.
func (d *Dims) valueDim() int {
	if d.Latent.Rank > 0 {
		return d.Latent.Value
	}
	return d.HeadDim
}

func (d *Dims) attnCols() int { return d.Heads * d.valueDim() }

// ropeHalf returns the number of rotated pairs per head.
func (d *Dims) ropeHalf() int {
	if d.Latent.Rank > 0 {
		return d.Latent.Rope / 2
	}
	return d.HeadDim / 2
}

// gateWidth returns the row stride of gate and up projections.
func (d *Dims) gateWidth() int { return stride(d.FFN) }

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

func (d *Dims) group() int { return d.Heads / d.KVHeads }
func (d *Dims) qCols() int { return d.Heads * d.HeadDim }
func (d *Dims) kCols() int { return d.KVHeads * d.HeadDim }
