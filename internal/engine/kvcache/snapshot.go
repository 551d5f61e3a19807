package kvcache

import (
	"errors"
	"fmt"

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
	for i := range s.states {
		if at := s.states[i].applied; at != n {
			return fmt.Errorf("kvcache: a snapshot after %d tokens of recurrent states after %d", n, at)
		}
	}
	return g.setStates(func(i int, block []byte) { copy(block, s.stateBlocks[i]) })
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
	blocks, err := g.arena.Alloc(g.g.stateBlock(), n)
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
	if err := s.openStates(tokens); err != nil {
		return err
	}
	for i, b := range s.stateBlocks {
		copy(b, g.states[i])
	}
	return nil
}

// forkStates gives a fork the states of s after the prompt.
func (f *Store) forkStates(s *Store) error {
	for i := range s.states {
		if at := s.states[i].applied; at != s.prompt {
			return fmt.Errorf("kvcache: a cache whose recurrent states are after %d tokens cannot be forked after %d", at, s.prompt)
		}
	}
	if err := f.openStates(s.prompt); err != nil {
		return err
	}
	for i, b := range f.stateBlocks {
		copy(b, s.stateBlocks[i])
	}
	return nil
}

// SaveStates copies the states of a prefill store, which its tokens advance in place. Rollback then
// returns to them. Errors wrap memory.ErrBudget.
func (s *Store) SaveStates() error {
	if err := s.ReserveCopy(); err != nil {
		return err
	}
	for i, b := range s.saved {
		copy(b, s.stateBlocks[i])
	}
	s.savedAt = s.tokens
	return nil
}

// ReserveCopy allocates room for a copy of the states. Errors wrap memory.ErrBudget.
func (s *Store) ReserveCopy() (err error) {
	if s.saved != nil || len(s.stateBlocks) == 0 {
		return nil
	}
	if s.saved, err = s.arena.Alloc(s.g.stateBlock(), len(s.stateBlocks)); err != nil {
		return fmt.Errorf("copy of recurrent states: %w", err)
	}
	return nil
}

// DropCopy frees the copy of the states.
func (s *Store) DropCopy() {
	s.arena.Release(s.saved)
	s.saved = nil
}

// CopyStates is Settle for n tokens, and copies the states after the first at tokens on the way.
func (s *Store) CopyStates(at, n int, run func(n int, f func(i int))) {
	run(len(s.saved), func(i int) {
		x, first := &s.states[i], s.states[i].applied
		x.settleAll(0, at)
		copy(s.saved[i], s.stateBlocks[i])
		x.settleAll(at-first, s.tokens+n)
	})
	s.savedAt = at
}

// copyAfter returns the copy of the states of all heads after block at of a text; nil: there is none.
func (s *Store) copyAfter(at int) [][]byte {
	if s.savedAt != (at+1)*tensor.BlockSlots {
		return nil
	}
	return s.saved
}

// TakeCopy moves the copy of a store's states to the segment of its last block, which has all heads.
func (g *Segment) TakeCopy(s *Store) {
	if blocks := s.copyAfter(g.at); g.states == nil && blocks != nil {
		g.mu.Lock()
		g.states, s.saved = blocks, nil
		g.mu.Unlock()
	}
}

// AppendCopy is AppendStates for the copy of the states after block at.
func (s *Store) AppendCopy(dst []byte, at int) ([]byte, error) {
	states := s.copyAfter(at)
	if states == nil {
		return dst, fmt.Errorf("kvcache: no copy of the recurrent states after block %d", at)
	}
	return (&Segment{arena: s.arena, g: s.g, heads: s.heads, at: at, states: states}).AppendStates(dst), nil
}

// restoreStates returns the states of a prefill store to those after the given number of tokens, if
// the copy has them.
func (s *Store) restoreStates(tokens int) {
	for i, b := range s.saved {
		if x := &s.states[i]; x.applied > tokens && s.savedAt == tokens {
			copy(s.stateBlocks[i], b)
			x.Advanced(tokens)
		}
	}
}

// StatesBlock is one KV head of a snapshot at block at of a text. Each state is a whole block of the
// arena, so that all heads have the same size.
func (g Geometry) StatesBlock(head, at int) RowBlock {
	b := stateBlock(g.Layers, (at+1)*tensor.BlockSlots, tensor.Span{Lo: head, Hi: head + 1})
	b.Layers.Hi = g.Layers + g.Recurrent.Layers
	return b
}

// StatesHeadBytes is the size of one KV head of a snapshot on the wire.
func StatesHeadBytes(g Geometry) int { return g.StatesBlock(0, 0).Bytes(g) }

// AppendStates appends the snapshot, a RowBlock of StatesHeadBytes for each head.
func (g *Segment) AppendStates(dst []byte) []byte {
	for head := g.heads.Lo; head < g.heads.Hi; head++ {
		dst, _ = g.g.StatesBlock(head, g.at).Append(dst, g)
	}
	return dst
}

// WriteStates stores the result of AppendStates on a socket with the same heads. It checks the rows
// before it allocates. Errors wrap ErrRows, memory.ErrBudget and memory.ErrMemory.
func (g *Segment) WriteStates(rows []byte) error {
	bodies := make([][]byte, g.heads.Len())
	var err error
	for i := range bodies {
		if bodies[i], rows, err = g.g.StatesBlock(g.heads.Lo+i, g.at).Cut(rows, g); err != nil {
			return err
		}
	}
	if len(rows) > 0 {
		return fmt.Errorf("%w: %d bytes follow a snapshot", ErrRows, len(rows))
	}
	size := g.g.stateBlock()
	return g.setStates(func(i int, block []byte) {
		copy(block, bodies[i%len(bodies)][i/len(bodies)*size:])
	})
}
