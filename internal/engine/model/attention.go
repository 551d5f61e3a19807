package model

import (
	"math"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Attention's parameters from the config: rotations, scale, and the shape of a cached row.

// Rotation is a rotation of heads by position.
type Rotation struct {
	Freq      []float64 // radians per position of each pair (i, i+dim/2); 0: the pair does not rotate
	Amplitude float32   // factor of cosine and sine of pairs that rotate; 0 counts as 1
}

// Rotations returns the rotations from which layers choose, see RopeOf. The first is the model's default. The rotation of
// layers with a window follows if it differs, then one that changes nothing if some layers need it.
func (c *Config) Rotations() []Rotation {
	all := []Rotation{{c.InvFreq(), float32(c.Rope.Amplitude)}}
	if c.LocalRope.Theta != 0 {
		freq := c.LocalRope.InvFreq(c.HeadDim)
		if c.Global.Dim == 0 {
			freq = c.padded(c.LocalRope.InvFreq(c.rotated()))
		}
		all = append(all, Rotation{freq, float32(c.LocalRope.Amplitude)})
	}
	if len(c.Unrotated) > 0 {
		all = append(all, Rotation{Freq: make([]float64, c.RopeDim()/2)})
	}
	return all
}

// RotationCount returns the length of Rotations without computing their frequencies.
func (c *Config) RotationCount() int {
	n := 1
	if c.LocalRope.Theta != 0 {
		n++
	}
	if len(c.Unrotated) > 0 {
		n++
	}
	return n
}

// padded adds the pairs that do not rotate.
func (c *Config) padded(freq []float64) []float64 {
	return append(freq, make([]float64, c.RopeDim()/2-len(freq))...)
}

// RopeOf returns the index in Rotations that a layer uses.
func (c *Config) RopeOf(layer int) int {
	local := c.LocalRope.Theta != 0
	switch {
	case slices.Contains(c.Unrotated, layer) && local:
		return 2
	case slices.Contains(c.Unrotated, layer), local && c.Window(layer) > 0:
		return 1
	}
	return 0
}

// AttentionScale returns the factor of attention scores: 1/sqrt(HeadDim), or 1/sqrt(QueryScale) in
// families that have it.
func (c *Config) AttentionScale() float32 {
	if c.Latent.Rank > 0 {
		return c.latentScale()
	}
	if c.QueryScale > 0 {
		return float32(1 / math.Sqrt(c.QueryScale))
	}
	return float32(1 / math.Sqrt(float64(c.HeadDim)))
}

// Score returns the weight of a key in attention.
func (c *Config) Score() tensor.Score {
	return tensor.Score{Scale: c.AttentionScale(), Cap: c.ScoreCap, Sinks: c.Sinks}
}

// EmbeddingScale returns the factor of an embedding that is stored as dt. transformers rounds the root
// to the type of the weights: sqrt(2560) becomes 50.5 in bf16. Quantized weights are converted from
// such weights.
func (c *Config) EmbeddingScale(dt tensor.DType) float32 {
	if m := c.Multipliers.Embedding; m != 0 {
		return m
	}
	if !c.ScaledEmbedding {
		return 1
	}
	return c.root(c.Hidden, dt)
}

// PerLayerScale returns the factor for rows of the table of per-layer inputs: the square root of their
// width, rounded like EmbeddingScale.
func (c *Config) PerLayerScale(dt tensor.DType) float32 { return c.root(c.PerLayer.Width, dt) }

func (c *Config) root(n int, dt tensor.DType) float32 {
	root := float32(math.Sqrt(float64(n)))
	if c.TrainedAs != 0 {
		dt = c.TrainedAs
	}
	if dt != tensor.F32 && dt != tensor.F16 {
		dt = tensor.BF16
	}
	return tensor.Round(dt, root)
}

// CacheRow returns the shape of a cached token in a layer: the number of KV heads, and the width of a
// key and of a value. Latent attention has one head. Its key is the latent, the rotated key and
// the key of an indexer. Its value is the latent, which is the key's first elements and stored once.
// With heads of two widths it is the shape in a layer without a window.
func (c *Config) CacheRow() (heads, key, value int) {
	if c.Latent.Rank > 0 {
		return 1, c.Latent.Row(), c.Latent.Rank
	}
	s := c.GlobalKV()
	return s.Heads, s.Dim, s.Dim
}

// CacheLayout returns the layout of a cache with CacheRow and a type.
func (c *Config) CacheLayout(kv tensor.DType) tensor.KVLayout {
	_, key, value := c.CacheRow()
	return tensor.KVLayout{Type: kv, KDim: key, VDim: value, Latent: c.Latent.Rank > 0}
}

// LocalLayout returns the layout of a cache in the layers with a window; zero: CacheLayout.
func (c *Config) LocalLayout(kv tensor.DType) tensor.KVLayout {
	if c.GlobalKV().Dim == c.HeadDim {
		return tensor.KVLayout{}
	}
	return tensor.KVLayout{Type: kv, KDim: c.HeadDim, VDim: c.HeadDim}
}

// RopeDim returns the number of elements of a head that are rotated as pairs of halves. Some of these
// pairs may have frequency 0.
func (c *Config) RopeDim() int {
	if c.Latent.Rank > 0 {
		return c.Latent.Rope
	}
	return c.GlobalKV().Dim
}

// ValueOf returns the width of a head's value in the output projection of a layer.
func (c *Config) ValueOf(l *LayerSpec) int {
	if c.Latent.Rank > 0 {
		return c.Latent.Value
	}
	return l.KV.Dim
}

// maxHeadUnits is the maximum number of runs of query heads that sockets divide in prefill of
// latent attention, as for units in every other contraction.
const maxHeadUnits = 16

// HeadUnits returns the number of equal runs of query heads that sockets divide in latent attention: the
// largest divisor of the number of heads up to 16. 0: no latent attention.
func (c *Config) HeadUnits() int {
	if c.Latent.Rank == 0 {
		return 0
	}
	units := min(maxHeadUnits, c.Heads)
	for c.Heads%units != 0 {
		units--
	}
	return units
}
