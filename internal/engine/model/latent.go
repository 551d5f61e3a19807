package model

import (
	"math"

	"github.com/shoal-llm/shoal/internal/engine/model/rotary"
)

// Latent is multi-head latent attention (MLA; DeepSeek-V2, arXiv 2405.04434, section 2.1): keys and
// values of all heads are projections of one latent per token, and all heads share one rotated key.
// See families/deepseek.go. All sizes are in elements.
type Latent struct {
	Rank      int     // of the latent of keys and values; 0: no latent attention
	QueryRank int     `json:",omitempty"` // of the latent of queries; 0: queries are projected directly
	Nope      int     // unrotated part of a head's query and key
	Rope      int     // rotated part
	Value     int     // width of a head's value
	Index     Indexer `json:",omitzero"` // see indexer.go
}

// LatentSpec names the tensors of a layer's latent attention.
type LatentSpec struct {
	QDown  Linear     // (query rank, hidden)
	QNorm  string     // (query rank)
	QUp    Linear     // (heads*(nope+rope), query rank); without a query latent (.., hidden)
	KVDown Linear     // (rank + rope, hidden)
	KVNorm string     // (rank)
	KVUp   Linear     // (heads*(nope+value), rank)
	Index  *IndexSpec // Latent.Index; nil: none
}

// LatentNormEps is the epsilon of QNorm and KVNorm, independent of the other norms.
const LatentNormEps = 1e-6

// latent lists the tensors of latent attention in the order of the formulas.
func (s *specs) latent(c *Config, l *LatentSpec) {
	d := &c.Latent
	s.linear(l.QDown, d.QueryRank, c.Hidden)
	s.add(l.QNorm, d.QueryRank)
	width := c.Hidden
	if d.QueryRank > 0 {
		width = d.QueryRank
	}
	s.linear(l.QUp, c.Heads*c.HeadDim, width)
	s.linear(l.KVDown, d.Rank+d.Rope, c.Hidden)
	s.add(l.KVNorm, d.Rank)
	s.linear(l.KVUp, c.Heads*(d.Nope+d.Value), d.Rank)
	s.indexer(c, l.Index)
}

// latentScale returns the factor of attention scores: 1/sqrt(HeadDim), with YaRN times the square of its
// mscale.
func (c *Config) latentScale() float32 {
	scale := 1 / math.Sqrt(float64(c.HeadDim))
	if c.Rope.Type == "yarn" && c.Rope.MScaleAll != 0 {
		m := rotary.YarnScale(c.Rope.Factor, c.Rope.MScaleAll)
		scale *= m * m
	}
	return float32(scale)
}
