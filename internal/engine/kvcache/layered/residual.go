package layered

import (
	"fmt"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Residual holds one rank's rows of the residual stream of a prompt between its layers, in blocks of
// the arena, one block a pass.
type Residual struct {
	arena  *kvcache.Arena
	first  int // position of the first row
	pass   int
	hidden int
	blocks [][]byte
}

// NewResidual returns the rows of the tokens [first, prompt) of a prompt that is read with passes of
// `pass` tokens, divided over ranks. Errors wrap kvcache.ErrBudget or kvcache.ErrMemory.
func NewResidual(a *kvcache.Arena, hidden, pass, ranks, first, prompt int) (*Residual, error) {
	blocks, err := a.Alloc(blockBytes(hidden, pass, ranks), passes(prompt-first, pass))
	if err != nil {
		return nil, fmt.Errorf("the residual stream of a prompt of %d tokens: %w", prompt, err)
	}
	return &Residual{arena: a, first: first, pass: pass, hidden: hidden, blocks: blocks}, nil
}

// Rows returns the memory of this rank's n rows of the pass that begins with position start.
func (r *Residual) Rows(start, n int) ([]float32, error) {
	at := start - r.first
	if at < 0 || at%r.pass != 0 || at/r.pass >= len(r.blocks) || 4*n*r.hidden > len(r.blocks[0]) {
		return nil, fmt.Errorf("layered: %d rows of a pass from position %d: passes begin every %d tokens after %d, and a block has %d bytes", n, start, r.pass, r.first, len(r.blocks[0]))
	}
	return tensor.Floats(r.blocks[at/r.pass])[:n*r.hidden], nil
}

// Release frees the rows. It may be called twice, or on nil.
func (r *Residual) Release() {
	if r != nil {
		r.arena.Release(r.blocks)
		r.blocks = nil
	}
}
