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
		kvHeads, dim, latent = c.HeadUnits(), c.HeadDim, c.Latent.Columns()
	}
	sparse := float64(c.SparseLayers()) / float64(max(1, c.Layers))
	return topology.Shape{Sparse: sparse, ActiveFFN: c.MoE.PerToken*c.MoE.FFN + c.MoE.Shared, Layers: c.Layers, Hidden: c.Hidden,
		Heads: c.Heads, KVHeads: kvHeads, HeadDim: dim, FFN: c.FFN, Vocab: c.Vocab, Latent: latent, Attention: meanProjections(c),
		FFNUnits: tensor.Units(c.FFN), FFNUnitStart: func(u int) int { return tensor.UnitsSpan(c.FFN, 0, u).Hi }}
}

// meanProjections returns the value of topology.Shape.Attention.
func meanProjections(c *model.Config) int {
	if c.Global.Dim == 0 && c.OwnKV == 0 || c.Layers == 0 {
		return 0
	}
	rows := 0
	for i := range c.Layers {
		l := c.Layer(i)
		rows += 2 * c.Heads * l.KV.Dim
		for _, m := range []model.Linear{l.K, l.V} {
			if m.Weight != "" {
				rows += l.KV.Heads * l.KV.Dim
			}
		}
	}
	return c.Hidden * rows / c.Layers
}

// GeometryOf returns the shape of the model's cache with rows of type kv.
func GeometryOf(c *model.Config, kv tensor.DType) kvcache.Geometry {
	heads, _, _ := c.CacheRow()
	return kvcache.Geometry{Layers: c.CacheLayers(), Across: c.SharesCaches(), Begins: c.CacheBegins(), Later: c.SwiftKV.Layers,
		Recurrent: layer.RecurrentOf(c), KVHeads: c.CacheHeads(), Group: c.Heads / heads, Layout: c.CacheLayout(kv), Local: c.LocalLayout(kv),
		Windows: c.CacheWindows(), Chunked: c.Chunked,
		Units: c.HeadUnits(), Unturned: c.QKNormOf == model.OfRotatedHeads || c.Latent.Index.Heads > 0}
}

// Layered reports whether prompts can be read layer by layer. Each layer must read only the residual stream of other
// layers, and write its own caches or recurrent state. SwiftKV's later layers also read the input of the first of
// them, which is stored.
func Layered(c *model.Config) bool {
	return !c.NonCausal && c.PerLayer.Width == 0 && c.OwnKV == 0
}
