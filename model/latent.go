package model

import (
	"math"

	"shoal/tensor"
)

// Latent is multi-head latent attention (MLA; DeepSeek-V2, arXiv 2405.04434, section
// 2.1): keys and values of all heads are projections of one latent per token, and
// one rotated key is shared by all heads. See deepseek.go. All sizes in elements.
type Latent struct {
	Rank      int // of the latent of keys and values; 0: the model has no latent attention
	QueryRank int `json:",omitempty"` // of the latent of queries; 0: queries are projected at once
	Nope      int // of a head's query and key, the part without position
	Rope      int // and the rotated part
	Value     int // of a head's value
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

// latentScale multiplies attention scores: 1/sqrt(HeadDim), with YaRN times the square
// of its mscale.
func (c *Config) latentScale() float32 {
	scale := 1 / math.Sqrt(float64(c.HeadDim))
	if c.Rope.Type == "yarn" && c.Rope.MScaleAll != 0 {
		m := yarnScale(c.Rope.Factor, c.Rope.MScaleAll)
		scale *= m * m
	}
	return float32(scale)
}
