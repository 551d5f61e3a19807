package shard

import (
	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// ShapeOf returns the properties of a model that placement needs.
func ShapeOf(c *model.Config) topology.Shape {
	kvHeads, dim, latent := c.KVUnits(), c.UnitDim(), 0
	if c.Latent.Rank > 0 {
		kvHeads, dim, latent = c.HeadUnits(), c.HeadDim, c.Latent.QueryRank+c.Latent.Rank+c.Latent.Rope
	}
	sparse := float64(c.SparseLayers()) / float64(max(1, c.Layers))
	return topology.Shape{Sparse: sparse, ActiveFFN: c.MoE.PerToken*c.MoE.FFN + c.MoE.Shared, Layers: c.Layers, Hidden: c.Hidden, Heads: c.Heads, KVHeads: kvHeads, HeadDim: dim, FFN: c.FFN, Vocab: c.Vocab, Latent: latent,
		FFNUnits: tensor.Units(c.FFN), FFNUnitStart: func(u int) int { return tensor.UnitsSpan(c.FFN, 0, u).Hi }}
}

// GeometryOf returns the shape of the model's cache with rows of type kv.
func GeometryOf(c *model.Config, kv tensor.DType) kvcache.Geometry {
	heads, _, _ := c.CacheRow()
	return kvcache.Geometry{Layers: c.CacheLayers(), Across: c.SharesCaches(), Recurrent: layer.RecurrentOf(c), KVHeads: c.CacheHeads(), Group: c.Heads / heads, Layout: c.CacheLayout(kv), Local: c.LocalLayout(kv), Windows: c.CacheWindows(), Units: c.HeadUnits()}
}
