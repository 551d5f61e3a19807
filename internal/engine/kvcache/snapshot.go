package kvcache

import (
	"errors"
	"fmt"

	"github.com/shoal-llm/shoal/internal/engine/kvcache/rowblock"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// A snapshot is the recurrent states of a text after the last token of a segment. A prompt can start
// from a chain of segments only if the last of them has one. Snapshots are stored with segments, like
// attention sums.

// KeepStates stores a snapshot of a prompt whose newest token, that of the running step included, is
// the segment's last one. Errors wrap memory.ErrBudget.
func (g *Segment) KeepStates(s *Store) error {
	n := (g.at + 1) * tensor.BlockSlots
	if err := s.fits(g, g.at); err != nil {
		return err
	}
	if err := s.states.After(n); err != nil {
		return fmt.Errorf("kvcache: a snapshot after %d tokens: %w", n, err)
	}
	return g.setStates(func(i int, block []byte) { copy(block, s.states.Block(i)) })
}

// setStates allocates a snapshot and fills its blocks.
func (g *Segment) setStates(fill func(i int, block []byte)) error {
	n := g.g.Recurrent.Layers * g.heads.Len()
	if n == 0 {
		return nil
	}
	if g.states != nil {
		return fmt.Errorf("kvcache: block %d of a text has a snapshot already", g.at)
	}
	blocks, err := g.arena.Alloc(g.g.states().BlockBytes(), n)
	if err != nil {
		return fmt.Errorf("snapshot of recurrent states: %w", err)
	}
	for i, b := range blocks {
		fill(i, b)
	}
	g.mu.Lock()
	g.states = blocks
	g.mu.Unlock()
	return nil
}

// HasStates reports whether a prompt can start after the segment: it has a snapshot, or needs none.
func (g *Segment) HasStates() bool {
	return g.states != nil || g.g.Recurrent.Layers*g.heads.Len() == 0
}

// dropStates frees the snapshot, if there is one.
func (g *Segment) dropStates() {
	g.mu.Lock()
	blocks := g.states
	g.states = nil
	g.mu.Unlock()
	g.arena.Release(blocks)
}

// startFrom starts the states of an empty prefill store with the snapshot of the last of its segments.
func (s *Store) startFrom(g *Segment, tokens int) error {
	if !g.HasStates() {
		return errors.New("kvcache: a model with recurrent states starts only after a segment with a snapshot")
	}
	if err := s.states.Open(tokens); err != nil {
		return err
	}
	s.states.Fill(func(i int) []byte { return g.states[i] })
	return nil
}

// forkStates gives a fork the states of s after the prompt.
func (f *Store) forkStates(s *Store) error {
	if err := s.states.After(s.prompt); err != nil {
		return fmt.Errorf("kvcache: a fork after %d tokens: %w", s.prompt, err)
	}
	if err := f.states.Open(s.prompt); err != nil {
		return err
	}
	f.states.Fill(s.states.Block)
	return nil
}

// TakeCopy moves the copy of a store's states to the segment of its last block, which has all heads.
func (g *Segment) TakeCopy(s *Store) {
	if g.states != nil {
		return
	}
	blocks := s.states.Take((g.at + 1) * tensor.BlockSlots)
	g.mu.Lock()
	g.states = blocks
	g.mu.Unlock()
}

// AppendCopy is AppendStates for the copy of the states after block at.
func (s *Store) AppendCopy(dst []byte, at int) ([]byte, error) {
	states := s.states.Saved((at + 1) * tensor.BlockSlots)
	if states == nil {
		return dst, fmt.Errorf("kvcache: no copy of the recurrent states after block %d", at)
	}
	return (&Segment{arena: s.arena, g: s.g, heads: s.heads, at: at, states: states}).AppendStates(dst), nil
}

// StatesBlock is one KV head of the snapshot after the block with number at. Each state is a whole block of the
// arena, so that all heads have the same size.
func (g Geometry) StatesBlock(head, at int) rowblock.Block {
	b := stateBlock(g.Layers, (at+1)*tensor.BlockSlots, tensor.Span{Lo: head, Hi: head + 1})
	b.Layers.Hi = g.Layers + g.Recurrent.Layers
	return b
}

// StatesHeadBytes returns the size of one KV head of a snapshot on the wire.
func StatesHeadBytes(g Geometry) int { return g.StatesBlock(0, 0).Bytes(g) }

// AppendStates appends the snapshot, a rowblock.Block of StatesHeadBytes for each head.
func (g *Segment) AppendStates(dst []byte) []byte {
	for head := g.heads.Lo; head < g.heads.Hi; head++ {
		dst, _ = g.g.StatesBlock(head, g.at).Append(dst, g)
	}
	return dst
}

// WriteStates stores the result of AppendStates on a socket with the same heads. It checks the rows
// before it allocates. Errors wrap rowblock.Err, memory.ErrBudget and memory.ErrMemory.
func (g *Segment) WriteStates(rows []byte) error {
	bodies := make([][]byte, g.heads.Len())
	var err error
	for i := range bodies {
		if bodies[i], rows, err = g.g.StatesBlock(g.heads.Lo+i, g.at).Cut(rows, g); err != nil {
			return err
		}
	}
	if len(rows) > 0 {
		return fmt.Errorf("%w: %d bytes follow a snapshot", rowblock.Err, len(rows))
	}
	size := g.g.states().BlockBytes()
	return g.setStates(func(i int, block []byte) {
		copy(block, bodies[i%len(bodies)][i/len(bodies)*size:])
	})
}
