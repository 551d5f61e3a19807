// Package kvcachetest hands prompts over as sockets do, for tests of caches and of policies.
package kvcachetest

import (
	"errors"
	"math/rand/v2"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/rowblock"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Observed returns queries of a prompt.
func Observed(prompt int, g kvcache.Geometry) []float32 {
	q := make([]float32, prompt*max(1, g.Group)*g.Layout.KDim)
	for i := range q {
		q[i] = float32(i%13)/13 - 0.5
	}
	return q
}

// Statistics are observed in a prompt.
func Statistics(s *kvcache.Store, layer, head int) *kvcache.Statistics {
	e := kvcache.StatisticsOf(s, layer, head)
	e.Score, e.Queries, e.Attention = tensor.Score{Scale: 0.25}, Observed(e.Prompt, s.Geometry()), make([]float32, e.Prompt)
	for i := range e.Attention {
		e.Attention[i] = float32(i * 7 % 31)
	}
	return e
}

// HandOver hands a prompt from the sockets that read it (stores, one of them the owner) over to the
// owner. It returns the owner's peak bytes.
func HandOver(p *kvcache.Policy, stores []*kvcache.Store, owner int) (*kvcache.Store, int64, error) {
	own := stores[owner]
	o := kvcache.NewStore(own.Arena(), own.Geometry(), p)
	adopted := tensor.Span{}
	if p.KeepsPrompt() {
		adopted = own.Heads()
	}
	prompt := own.Tokens()
	if err := o.Open(prompt, prompt, adopted); err != nil {
		return nil, 0, err
	}
	rules, err := divide(p, stores, o)
	if err != nil {
		return nil, 0, err
	}
	peak := o.Bytes() + own.Bytes()
	o.Score = tensor.Score{Scale: 0.25}
	for i, s := range stores {
		g := s.Geometry()
		for head := s.Heads().Lo; head < s.Heads().Hi; head++ {
			if i == owner && p.KeepsPrompt() {
				if err := o.Adopt(s, head); err != nil {
					return nil, 0, err
				}
			}
			for layer := range s.Geometry().Layers {
				rule := rules(layer, head)
				if i == owner && rule.KeepsPrompt() {
					continue
				}
				seen := Statistics(s, layer, head)
				kept := rule.Keep(seen)
				if i == owner {
					if err := errors.Join(o.Keep(s, layer, head, kept), o.KeepQueries(seen)); err != nil {
						return nil, 0, err
					}
					continue
				}
				for _, b := range inRuns(kvcache.PromptBlock(g, rule, prompt, layer, tensor.Span{Lo: head, Hi: head + 1})) {
					rows, err := b.Append(nil,
						kvcache.Selection{From: s, Policy: p, Kept: func(int) (kvcache.Kept, *kvcache.Statistics) { return kept, seen }})
					if err != nil {
						return nil, 0, err
					}
					if _, err := b.Store(rows, o); err != nil {
						return nil, 0, err
					}
				}
			}
		}
	}
	if p.Needs.Queries { // they came with the rows
		peak = o.Bytes() + own.Bytes()
	}
	for _, s := range stores {
		s.Release()
	}
	return o, peak, o.Seal()
}

// divide gives the heads of each layer of the owner their budgets, and returns the policy of each head.
func divide(p *kvcache.Policy, stores []*kvcache.Store, owner *kvcache.Store) (rule func(layer, head int) *kvcache.Policy, err error) {
	g, prompt := owner.Geometry(), stores[0].Tokens()
	blocks := make([][]int, g.Layers)
	for layer := range blocks {
		of := g.Rule(layer, p)
		if !of.Divides(g, prompt) {
			continue
		}
		curves := make([][]float32, g.KVHeads)
		for _, s := range stores {
			for head := s.Heads().Lo; head < s.Heads().Hi; head++ {
				curves[head] = of.HeadCurve(Statistics(s, layer, head), g.KVHeads)
			}
		}
		blocks[layer] = of.HeadBlocks(prompt, curves)
		err = errors.Join(err, owner.Divide(layer, blocks[layer]))
	}
	return func(layer, head int) *kvcache.Policy {
		of := g.Rule(layer, p)
		if blocks[layer] != nil {
			of = of.OfHead(prompt, blocks[layer][head])
		}
		return of
	}, err
}

// inRuns cuts a block into runs of 50 slots.
func inRuns(b rowblock.Block) (runs []rowblock.Block) {
	for at := b.Slots.Lo; at < b.Slots.Hi; at += 50 {
		run := b
		run.Slots = tensor.Span{Lo: at, Hi: min(at+50, b.Slots.Hi)}
		runs = append(runs, run)
	}
	return runs
}

// Noise is a row without ties.
func Noise(g kvcache.Geometry, layer, head, pos int) (k, v []float32) {
	r := rand.New(rand.NewPCG(uint64(pos), uint64(layer*100+head)))
	row := make([]float32, g.Layout.KDim+g.Layout.VDim)
	for i := range row {
		row[i] = r.Float32()*2 - 1
	}
	return row[:g.Layout.KDim], row[g.Layout.KDim:]
}

// WriteNoise writes such rows for the positions [from, to).
func WriteNoise(s *kvcache.Store, from, to int) {
	for layer := range s.Geometry().Layers {
		for head := s.Heads().Lo; head < s.Heads().Hi; head++ {
			for pos := from; pos < to; pos++ {
				k, v := Noise(s.Geometry(), layer, head, pos)
				s.Write(layer, head, pos, k, v)
			}
		}
	}
}
