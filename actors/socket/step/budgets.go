package step

import (
	"github.com/shoal-llm/shoal/collective"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Some policies divide the tokens of a layer among its heads (kvcache.Parts.HeadBudget). Before they choose
// tokens, the ranks exchange a curve of each head's votes. All ranks then compute the same division.

// budget returns the blocks of each head of a sequence in a layer of the exchange; nil: they are equal.
func (h *handover) budget(seq, layer int) []int {
	of := h.chosen[layer-h.layers.Lo].budgets
	if of == nil {
		return nil
	}
	return of[seq]
}

// rule returns the policy of a head.
func (h *handover) rule(seq, layer, head int) *kvcache.Policy {
	q := h.seqs[seq]
	p := h.epoch.Geometry.Rule(layer, q.Policy)
	if of := h.budget(seq, layer); of != nil {
		return p.OfHead(q.Prompt, of[head])
	}
	return p
}

// divided is a sequence whose heads have budgets of their own in a layer, and the length of a head's curve.
type divided struct{ seq, layer, steps int }

// dividing lists them, the same on all ranks.
func (h *handover) dividing() (all []divided) {
	g := h.epoch.Geometry
	for l := h.layers.Lo; l < min(h.layers.Hi, g.Layers); l++ {
		for i, q := range h.seqs {
			if p := g.Rule(l, q.Policy); p.Divides(g, q.Prompt) {
				all = append(all, divided{i, l, p.HeadSteps(q.Prompt, g.KVHeads)})
			}
		}
	}
	return all
}

// divide begins an exchange of layers: it divides the budgets of their heads.
func (h *handover) divide(layers tensor.Span, done func(error)) {
	e := h.epoch
	h.layers, h.chosen = layers, make([]chosen, layers.Len())
	all := h.dividing()
	if len(all) == 0 {
		done(nil)
		return
	}
	floats, mine := 0, h.of(e.Rank)
	for _, d := range all {
		floats += d.steps
	}
	curves := make([][]float32, len(e.Place.Slices)) // of each rank
	for r := range curves {
		curves[r] = make([]float32, floats*h.of(r).Len())
	}
	own := curves[e.Rank]
	for _, d := range all {
		c := &h.chosen[d.layer-layers.Lo]
		if c.stats == nil {
			h.observe(d.layer)
		}
		p := e.Geometry.Rule(d.layer, h.seqs[d.seq].Policy)
		for head := range mine.Len() {
			own = own[copy(own, p.HeadCurve(c.stats[d.seq*mine.Len()+head], e.Geometry.KVHeads)):]
		}
	}
	finish := func(err error) {
		if err == nil {
			err = h.setBudgets(all, curves)
		}
		done(err)
	}
	if len(curves) == 1 {
		finish(nil)
		return
	}
	e.Group.AllGather(collective.OpID(h.batch.NextOp()), curves[e.Rank], curves, finish)
}

// setBudgets divides budgets by the curves of all ranks, in this rank's caches too.
func (h *handover) setBudgets(all []divided, curves [][]float32) error {
	e := h.epoch
	for _, d := range all {
		q, c := h.seqs[d.seq], &h.chosen[d.layer-h.layers.Lo]
		heads := make([][]float32, e.Geometry.KVHeads)
		for r := range curves {
			for head := h.of(r).Lo; head < h.of(r).Hi; head++ {
				heads[head], curves[r] = curves[r][:d.steps], curves[r][d.steps:]
			}
		}
		if c.budgets == nil {
			c.budgets = make([][]int, len(h.seqs))
		}
		c.budgets[d.seq] = e.Geometry.Rule(d.layer, q.Policy).HeadBlocks(q.Prompt, heads)
		if q.Owner == e.Rank {
			if err := q.Cache.Divide(d.layer, c.budgets[d.seq]); err != nil {
				return err
			}
		}
	}
	return nil
}
