package kvcache

import (
	"fmt"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// SumsBytes returns the size of the sums of a segment on a socket. heads is its number of KV
// heads (or units) of every layer, and tokens the length of the text.
func SumsBytes(g Geometry, heads, tokens int) int64 {
	return statisticsBytes(g, heads, tokens, Needs{PromptAttention: true})
}

// KeepSums stores the attention sums of a text with the segment: the attention that its tokens up to
// the segment's end received from the queries up to there. o has observed exactly these queries. Errors
// wrap memory.ErrBudget.
func (g *Segment) KeepSums(o *Observation) error {
	if o == nil {
		return nil // every layer has a window
	}
	n := (g.at + 1) * tensor.BlockSlots
	if o.attention == nil || n > o.prompt || g.sums != nil {
		return fmt.Errorf("kvcache: cannot keep sums of %d tokens of a prompt of %d with block %d", n, o.prompt, g.at)
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

// Continue starts an observation with a segment's sums instead of the queries up to its end.
func (o *Observation) Continue(g *Segment) error {
	if o == nil {
		return nil
	}
	n := (g.at + 1) * tensor.BlockSlots
	if o.attention == nil || n > o.prompt || len(g.sums) != len(o.attention)/o.prompt*n {
		return fmt.Errorf("kvcache: a prompt of %d tokens cannot continue from %d sums at block %d", o.prompt, len(g.sums), g.at)
	}
	for i := range len(o.attention) / o.prompt {
		copy(o.attention[i*o.prompt:], g.sums[i*n:][:n])
	}
	return nil
}

// DropExtras frees the sums and the snapshot, if there are any.
func (g *Segment) DropExtras() {
	g.arena.Uncharge(4 * int64(len(g.sums)))
	g.setSums(nil)
	g.dropStates()
}

// setSums sets the sums under the lock of Held.
func (g *Segment) setSums(sums []float32) {
	g.mu.Lock()
	g.sums = sums
	g.mu.Unlock()
}
