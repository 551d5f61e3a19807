package kvcache

import (
	"fmt"

	"github.com/shoal-llm/shoal/internal/engine/kvcache/budget"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/rowblock"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Under Parts.HeadBudget each KV head of a layer keeps a number of tokens that depends on the prompt. Its
// table then has a rule of its own. Budgets differ by whole blocks, and their sum is that of equal budgets,
// so all costs are those of equal budgets. A layer's rows move as if budgets were equal (budget.Deal), with
// the blocks of each head in rowblock.Index.

// Divides reports whether the heads of a layer, whose policy is p, have budgets of their own.
func (p *Policy) Divides(g Geometry, prompt int) bool {
	return p.HeadBudget != nil && g.KVHeads > 1 && prompt-p.Sink-p.Recent > p.chosen(prompt)
}

// HeadCurve is the input of budget.Heads.Divide for one head.
func (p *Policy) HeadCurve(s *Statistics, heads int) []float32 {
	return p.HeadBudget.Curve(p.Compressor.Score(s)[p.Sink:s.Prompt-p.Recent], p.chosen(s.Prompt), heads)
}

// HeadSteps returns the length of a HeadCurve.
func (p *Policy) HeadSteps(prompt, heads int) int {
	return p.HeadBudget.Steps(prompt-p.Sink-p.Recent, p.chosen(prompt), heads)
}

// HeadBlocks divides the budget of a layer by the curves of all heads.
func (p *Policy) HeadBlocks(prompt int, curves [][]float32) []int {
	return p.HeadBudget.Divide(curves, p.chosen(prompt))
}

// OfHead returns the policy of a head with a number of blocks.
func (p *Policy) OfHead(prompt, blocks int) *Policy {
	q := *p
	q.layers, q.LayerTopK, q.TopK = nil, nil, p.chosen(prompt)%p.HeadBudget.Block+blocks*p.HeadBudget.Block
	return &q
}

// divides returns the policy of a table's layer if its heads have budgets of their own; otherwise nil.
func (s *Store) divides(t *table) *Policy {
	if p := s.g.layer(t.Layer, s.policy); t.window == 0 && !s.states.InPlace && p.Divides(s.g, s.prompt) {
		return p
	}
	return nil
}

// Divide gives the heads of a layer their budgets: an owner does before the rows arrive.
func (s *Store) Divide(layer int, blocks []int) error {
	tables := s.tables[s.index(layer, s.heads.Lo):][:s.heads.Len()]
	p := s.divides(&tables[0])
	if p == nil || s.sealed || s.pending == 0 || tables[0].blocks != nil || len(blocks) != len(tables) {
		return fmt.Errorf("kvcache: Divide of layer %d among %d heads, of a store that is not open", layer, len(blocks))
	}
	mean := p.HeadBudget.Blocks(p.chosen(s.prompt))
	left := mean * len(tables)
	var positions, offsets []*[]int32
	var lists [planes][]*[][]byte
	for i, n := range blocks {
		t := &tables[i]
		if left -= n; n < 0 || p.OfHead(s.prompt, n).TopK > s.prompt-p.Sink-p.Recent {
			return fmt.Errorf("%w: layer %d, head %d: a budget of %d blocks of a prompt of %d", rowblock.Err, layer, t.Index, n, s.prompt)
		}
		for j := range t.planes {
			lists[j] = append(lists[j], &t.planes[j].blocks)
		}
		positions, offsets = append(positions, &t.Positions), append(offsets, &t.offsets)
	}
	if left != 0 {
		return fmt.Errorf("%w: layer %d: budgets of %v blocks, %d in the mean", rowblock.Err, layer, blocks, mean)
	}
	budget.Deal(positions, blocks, mean, tensor.BlockSlots)
	if tables[0].rule.cachePositions {
		budget.Deal(offsets, blocks, mean, tensor.BlockSlots)
	}
	for j, of := range lists {
		if tables[0].planes[j].size > 0 {
			budget.Deal(of, blocks, mean, 1)
		}
	}
	for i, n := range blocks {
		t := &tables[i]
		t.rule, t.blocks, t.mean = p.OfHead(s.prompt, n), blocks, mean
		slots := t.rule.Slots(s.prompt, s.pending)
		t.filled, t.n = make([]uint64, (slots+63)/64), min(t.n, 1)*slots
	}
	s.changes++
	return nil
}

// divideMoved gives heads the budgets that came with their rows.
func (s *Store) divideMoved() error {
	for i := 0; i < len(s.tables); i += s.heads.Len() {
		blocks := make([]int, s.heads.Len())
		for j := range blocks {
			blocks[j] = s.tables[i+j].moved
		}
		if t := &s.tables[i]; t.blocks == nil && s.divides(t) != nil {
			if err := s.Divide(t.Layer, blocks); err != nil {
				return err
			}
		}
	}
	return nil
}

// dealt returns the table and the slot of a slot as it moves.
func (s *Store) dealt(t *table, slot int) (*table, int) {
	if t.blocks == nil {
		return t, slot
	}
	head, b := budget.Dealt(t.blocks, t.mean, t.Index-s.heads.Lo, slot/tensor.BlockSlots)
	return s.table(t.Layer, s.heads.Lo+head), b*tensor.BlockSlots + slot%tensor.BlockSlots
}
