package shard

import (
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// ShapeOf returns the properties of a model that placement needs.
func ShapeOf(c *model.Config) topology.Shape {
	kvHeads, latent := c.KVHeads, 0
	if c.Latent.Rank > 0 {
		kvHeads, latent = c.HeadUnits(), c.Latent.QueryRank+c.Latent.Rank+c.Latent.Rope
	}
	sparse := float64(c.SparseLayers()) / float64(max(1, c.Layers))
	return topology.Shape{Sparse: sparse, ActiveFFN: c.MoE.PerToken*c.MoE.FFN + c.MoE.Shared, Layers: c.Layers, Hidden: c.Hidden, Heads: c.Heads, KVHeads: kvHeads, HeadDim: c.HeadDim, FFN: c.FFN, Vocab: c.Vocab, Latent: latent,
		FFNUnits: tensor.Units(c.FFN), FFNUnitStart: func(u int) int { return tensor.UnitsSpan(c.FFN, 0, u).Hi }}
}
