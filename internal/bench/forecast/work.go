// Package forecast computes the time of a step on a cluster. Its inputs are the shape of a model, a table
// of costs of a node, and the delay and rate of its link. It simulates every message of a step. It has no
// clock and no input or output. docs/forecast.md lists its assumptions.
package forecast

import (
	"math"

	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
	"github.com/shoal-llm/shoal/internal/machine/costs"
	"github.com/shoal-llm/shoal/topology"
)

// Work counts the reads, computations and exchanges of one step of a model, independent of any machine.
type Work struct {
	Mapping   topology.Mapping
	Quantized bool    // activations cross the wire as int8 blocks where the layers permit it
	weight    float64 // bytes of one weight
	hidden    int
	kvFloats  int // of a token's keys and values in one layer
	heads     int // floats of a token's attention output
	kvHeads   int
	latent    latent
	groups    []group
	vocab     int
	layers    int
	slotBytes float64 // cache bytes of a token in one layer
	slotFlops float64 // multiply-adds of one row with one slot in one layer
	windows   []int   // of each layer; 0: none
}

// latent has the widths of latent attention, in floats of a token; zero: none.
type latent struct {
	down    int // latents of queries, keys and values
	queries int // absorbed queries of all heads
	means   int // attention outputs of all heads in latent space
	rank    int
}

// group is a number of equal layers.
type group struct {
	layers    int
	last      bool // the model's last layer
	attention int  // weights of the projections
	ffn       int  // inner width of the dense FFN, or of the shared experts
	experts   int  // 0: a dense layer
	perToken  int
	expert    int // inner width of one expert
}

// WorkOf returns the work of a model.
func WorkOf(c *model.Config, weights, kv tensor.DType, mapping topology.Mapping) Work {
	w := Work{Mapping: mapping, Quantized: kernel.Quantized(weights) && c.MoE.Experts == 0 && c.Latent.Rank == 0,
		weight: float64(weights.BytesPerRow(32)) / 32,
		hidden: c.Hidden, vocab: c.Vocab, layers: c.Layers}
	heads, key, value := c.CacheRow()
	w.heads = c.Heads * c.HeadDim
	if c.Latent.Rank > 0 {
		l := c.Latent
		w.heads = c.Heads * l.Value
		w.latent = latent{down: l.QueryRank + l.Row(), queries: c.Heads * l.Row(), means: c.Heads * l.Rank, rank: l.Rank}
	}
	w.kvFloats, w.kvHeads = heads*(key+value), heads
	row := c.CacheLayout(kv)
	w.slotBytes = float64(row.RowBytes() * heads)
	w.slotFlops = float64(c.Heads * (key + value))
	index := map[group]int{}
	for i := range c.Layers {
		layer := c.Layer(i)
		g := group{last: i+1 == c.Layers, attention: attentionWeights(c, &layer)}
		if c.Sparse(i) {
			g.experts, g.perToken, g.expert, g.ffn = c.MoE.Experts, c.MoE.PerToken, c.MoE.FFN, c.MoE.Shared
		} else {
			g.ffn = layer.FFN
		}
		w.windows = append(w.windows, c.Window(i))
		at, ok := index[g]
		if !ok {
			at = len(w.groups)
			index[g] = at
			w.groups = append(w.groups, g)
		}
		w.groups[at].layers++
	}
	return w
}

// Weight returns the mean bytes of a weight. Slot returns the bytes and products of attention for a row and a
// slot.
func (w *Work) Weight() float64 { return w.weight }

func (w *Work) Slot() costs.Slot { return costs.Slot{Bytes: w.slotBytes, MACs: w.slotFlops} }

// attentionWeights returns the number of weights of a layer's projections.
func attentionWeights(c *model.Config, layer *model.LayerSpec) int {
	l := c.Latent
	if l.Rank > 0 {
		query := c.Hidden * c.Heads * c.HeadDim
		if l.QueryRank > 0 {
			query = l.QueryRank * (c.Hidden + c.Heads*c.HeadDim)
		}
		return query + c.Hidden*l.Row() + c.Heads*l.Rank*(l.Nope+l.Value) + c.Hidden*c.Heads*l.Value
	}
	return c.Hidden * (2*c.Heads*layer.KV.Dim + 2*layer.KV.Heads*layer.KV.Dim)
}

// slots returns how many slots a row with a context reads in all layers together.
func (w *Work) slots(context int) (n float64) {
	for _, window := range w.windows {
		if window == 0 || context < window {
			window = context
		}
		n += float64(window)
	}
	return n
}

// panel is the number of rows that are cut as one.
const panel = 16

// share returns the part of a matrix's rows that the busiest of n ranks has.
func share(rows, n int) float64 {
	panels := (rows + panel - 1) / panel
	if panels == 0 {
		return 0
	}
	return float64((panels+n-1)/n) / float64(panels)
}

// units returns the number of units of a contraction axis.
func units(columns int) int { return min(tensor.MaxUnits, max(1, columns/32)) }

// unitShare returns the part of a contraction axis that the busiest of n ranks has.
func unitShare(columns, n int) float64 {
	u := units(columns)
	return float64((u+n-1)/n) / float64(u)
}

// treeNodes returns the largest number of nodes of the sum's tree that one of n ranks contributes.
func treeNodes(columns, n int) int {
	u, most := units(columns), 0
	for r := range n {
		most = max(most, len(tensor.Subtrees(r*u/n, (r+1)*u/n, u)))
	}
	return most
}

// touched returns the expected share of experts that some of rows rows need, if each needs
// perToken of them independently.
func (g *group) touched(rows int) float64 {
	return 1 - math.Pow(1-float64(g.perToken)/float64(g.experts), float64(rows))
}

// inner returns the width by which a layer's FFN is cut: each expert is cut over all ranks.
func (g *group) inner() int { return max(g.ffn, g.expert) }
