package kvcache

import (
	"fmt"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// SumsBytes is what the sums beside a segment take on a socket with `heads` KV heads (or units)
// of every layer, at the end of a text of so many tokens.
func SumsBytes(g Geometry, heads, tokens int) int64 {
	return statisticsBytes(g, heads, tokens, Needs{PromptAttention: true})
}

// KeepSums lays the attention that the tokens of a text have received, up to the end of the
// segment and from the queries up to there, beside it. o has seen these queries and no later ones.
// Errors wrap ErrBudget.
func (g *Segment) KeepSums(o *Observation) error {
	if o == nil {
		return nil // no layer sees everything
	}
	n := (g.at + 1) * tensor.BlockSlots
	if o.attention == nil || n > o.prompt || g.sums != nil {
		return fmt.Errorf("kvcache: sums of %d tokens of a prompt of %d beside block %d", n, o.prompt, g.at)
	}
	sums := make([]float32, 0, len(o.attention)/o.prompt*n)
	if err := g.arena.Charge(4 * int64(cap(sums))); err != nil {
		return fmt.Errorf("sums of %d tokens: %w", n, err)
	}
	for head := range slices.Chunk(o.attention, o.prompt) {
		sums = append(sums, head[:n]...)
	}
	g.setSums(sums)
	return nil
}

// Continue puts the sums beside a segment in the place of the queries up to its end.
func (o *Observation) Continue(g *Segment) error {
	if o == nil {
		return nil
	}
	n := (g.at + 1) * tensor.BlockSlots
	if o.attention == nil || n > o.prompt || len(g.sums) != len(o.attention)/o.prompt*n {
		return fmt.Errorf("kvcache: a prompt of %d tokens goes on from %d sums at block %d", o.prompt, len(g.sums), g.at)
	}
	for i := range len(o.attention) / o.prompt {
		copy(o.attention[i*o.prompt:], g.sums[i*n:][:n])
	}
	return nil
}

// DropSums gives the sums up; without any it does nothing.
func (g *Segment) DropSums() {
	g.arena.Uncharge(4 * int64(len(g.sums)))
	g.setSums(nil)
}

// setSums changes what Arena.Stats looks at.
func (g *Segment) setSums(sums []float32) {
	g.arena.mu.Lock()
	g.sums = sums
	g.arena.mu.Unlock()
}
