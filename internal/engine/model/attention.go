package model

import (
	"math"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// What attention takes from the config: its rotations, its scale, and the shape of a row
// that it keeps.

// Rotations are the angles per position that layers choose from, see RopeOf.
func (c *Config) Rotations() [][]float64 {
	if c.LocalRope.Theta == 0 {
		return [][]float64{c.InvFreq()}
	}
	return [][]float64{c.InvFreq(), c.LocalRope.InvFreq(c.HeadDim)}
}

// RopeOf says which of Rotations a layer uses.
func (c *Config) RopeOf(layer int) int {
	if c.LocalRope.Theta != 0 && c.Window(layer) > 0 {
		return 1
	}
	return 0
}

// AttentionScale multiplies attention scores: 1/sqrt(HeadDim), or of QueryScale
// where the family says so.
func (c *Config) AttentionScale() float32 {
	if c.Latent.Rank > 0 {
		return c.latentScale()
	}
	if c.QueryScale > 0 {
		return float32(1 / math.Sqrt(c.QueryScale))
	}
	return float32(1 / math.Sqrt(float64(c.HeadDim)))
}

// EmbeddingScale multiplies an embedding that is stored as dt. transformers rounds the
// root to the type of the weights: sqrt(2560) becomes 50.5 in bf16. What is
// quantised comes from such weights.
func (c *Config) EmbeddingScale(dt tensor.DType) float32 {
	if !c.ScaledEmbedding {
		return 1
	}
	root := float32(math.Sqrt(float64(c.Hidden)))
	if c.TrainedAs != 0 {
		dt = c.TrainedAs
	}
	if dt != tensor.F32 && dt != tensor.F16 {
		dt = tensor.BF16
	}
	return tensor.Round(dt, root)
}

// CacheRow is what attention keeps of a token in a layer: the number of KV heads,
// and the width of a key and of a value. Of latent attention it is one head, with
// the latent and the rotated key as its key, and the latent, which is the key's first
// elements and stored once, as its value.
func (c *Config) CacheRow() (heads, key, value int) {
	if c.Latent.Rank > 0 {
		return 1, c.Latent.Rank + c.Latent.Rope, c.Latent.Rank
	}
	return c.KVHeads, c.HeadDim, c.HeadDim
}

// CacheLayout is how a cache of a type holds CacheRow.
func (c *Config) CacheLayout(kv tensor.DType) tensor.KVLayout {
	_, key, value := c.CacheRow()
	return tensor.KVLayout{Type: kv, KDim: key, VDim: value, Latent: c.Latent.Rank > 0}
}

// RopeDim is the number of rotated elements of a head.
func (c *Config) RopeDim() int {
	if c.Latent.Rank > 0 {
		return c.Latent.Rope
	}
	return c.HeadDim
}

// ValueDim is the width of a head's value, as the output projection reads it.
func (c *Config) ValueDim() int {
	if c.Latent.Rank > 0 {
		return c.Latent.Value
	}
	return c.HeadDim
}

// maxHeadUnits is the number of runs of query heads that sockets divide in prefill of
// latent attention, as of units in every other contraction.
const maxHeadUnits = 16

// HeadUnits is the number of equal runs of query heads that a socket may own in
// latent attention, 0 without it: the most that divide the heads, up to 16.
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
