package accelerator

import (
	"fmt"
	"slices"

	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/internal/engine/cuda/launch"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// types are those of weights that the kernels multiply.
var types = []tensor.DType{tensor.Q8_0, tensor.Q4_0, tensor.BF16, tensor.F16, tensor.F32}

// Supports returns an error that names the first part of a model that a card does not compute, or nil.
func Supports(c *model.Config, weights tensor.DType) error {
	for _, x := range []struct {
		has  bool
		what string
	}{
		{c.MoE.Biased || c.MoE.DenseFFN || c.MoE.Ungated || c.MoE.Router.OfInput,
			"experts with biases, without a gate, beside a dense FFN, or with weights of their inputs"},
		{c.Latent.Rank > 0, "latent attention"},
		{c.RecurrentLayers() > 0, "recurrent states"},
		{c.SwiftKV.Layers > 0, "SwiftKV"},
		{c.Global.Dim > 0 || c.WideFFN || c.OwnKV > 0, "layers of different widths"},
		{c.PerLayer.Width > 0, "inputs of each layer"},
		{c.NonCausal || c.Headless || c.PostNorm, "encoders"},
		{c.VNorm || c.VFromK || c.OutputGate, "norms of values, or gates of attention's output"},
		{c.QKNorm && c.QKNormOf != model.OfHeads, "norms of queries and keys that are not of a head before its rotation"},
		{c.MeanNorm || c.NormBias, "norms that subtract the mean"},
		{c.Parallel, "attention and FFN in parallel"},
		{c.SinkScores, "attention sinks"},
		{c.Blocks != nil, "layers without an FFN, or FFNs without a gate"},
		{c.Growth.Beta != 0, "queries that grow with their position"},
	} {
		if x.has {
			return fmt.Errorf("%s are not computed on a card", x.what)
		}
	}
	if m := &c.MoE; m.Experts > 0 && (m.FFN%tensor.BlockWidth != 0 || m.Shared%tensor.BlockWidth != 0) {
		return fmt.Errorf("a card computes experts of widths in multiples of %d; those of this model have %d, and %d the shared ones",
			tensor.BlockWidth, m.FFN, m.Shared)
	}
	whole := func(n int) bool { return n > 0 && n%tensor.BlockWidth == 0 }
	switch {
	case !slices.Contains(types, weights):
		return fmt.Errorf("weights of %v are not multiplied on a card: choose one of %v", weights, types)
	case !whole(c.Hidden) || !whole(c.FFN) || !whole(c.Heads*c.HeadDim),
		c.Hidden > launch.MaxNorm, c.HeadDim%8 != 0, c.HeadDim > launch.MaxHead:
		return fmt.Errorf("a card computes widths in multiples of %d, hidden sizes up to %d, and heads up to %d in multiples of 8; "+
			"this model has hidden size %d, FFN %d, heads %d x %d",
			tensor.BlockWidth, launch.MaxNorm, launch.MaxHead, c.Hidden, c.FFN, c.Heads, c.HeadDim)
	}
	return nil
}

// MostRows returns the maximum number of rows of a step. A row of a layer with experts is several pairs.
func MostRows(c *model.Config) int { return launch.MaxGridY / max(1, c.MoE.PerToken) }

// Policy returns an error if caches of a policy are not kept on a card, or nil.
func Policy(p *kvcache.Policy) error {
	switch {
	case p.Selector == nil && p.Index == nil && p.HeadBudget == nil && !p.CachePositions():
		return nil
	case p.CachePositions():
		return fmt.Errorf("cache policy %s with positions=cache is not computed on a graphics card: "+
			"leave it out, or compute on the CPU", p.Name())
	case p.HeadBudget != nil:
		return fmt.Errorf("cache policy %s with a budget of each head is not computed on a graphics card: "+
			"use snapkv, leave heads=ada out, or compute on the CPU", p.Name())
	}
	return fmt.Errorf("cache policy %s is not computed on a graphics card, because each query reads selected tokens only: "+
		"use a policy that evicts, such as snapstream without recall, or compute on the CPU", p.Name())
}

// ActivationBytes returns the memory of a card that the steps of one micro-batch take, without the caches.
func ActivationBytes(d layer.Dims, maxRows, context int) int64 {
	rows, q := int64(maxRows), int64(d.Heads*d.HeadDim)
	h, f, qkv := int64(d.Hidden), int64(d.FFN), int64((d.Heads+2*d.KVHeads)*d.HeadDim)
	inputs := 4*(h+q+f) + (h+q+f)*9/8
	steps := rows * (4*(2*h+qkv+2*f) + inputs + 4*int64(max(1, d.Ropes)*d.HeadDim) + launch.RowBytes)
	scratch := attendScratch(launch.Attend{
		Cache: launch.Cache{KVHeads: d.KVHeads, HeadDim: d.HeadDim}, Heads: d.Heads, Slots: context,
	})
	return steps + mixtureBytes(d, rows) + 4*layer.LogitRows*(int64(d.Vocab)+2) + launch.BestBytes(layer.LogitRows, d.Vocab) + scratch
}
