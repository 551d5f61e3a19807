package kvcache

import (
	"errors"
	"fmt"
	"slices"

	"shoal/tensor"
)

// Segment is the rows of the first tokens of a text: blocks that several stores read and
// none writes. A store that goes on where a segment ends copies its last block when that is
// not full, and shares the others. A segment that nobody reads is evictable.
type Segment struct {
	arena  *Arena
	g      Geometry
	heads  tensor.Span
	tokens int
	blocks [][][]byte // [layer][head]
}

// Share makes a segment of the first n tokens of a store in which every head keeps every
// token. Release it when nobody is to attach it any more.
func (s *Store) Share(n int) (*Segment, error) {
	if !s.sealed || n < 1 || n > s.tokens {
		return nil, fmt.Errorf("kvcache: a segment of %d tokens of a store with %d", n, s.tokens)
	}
	if s.evicts() || s.g.Windows != nil {
		return nil, errors.New("kvcache: a segment of a store that does not keep every token")
	}
	g := &Segment{arena: s.arena, g: s.g, heads: s.heads, tokens: n}
	for i := range s.tables {
		g.blocks = append(g.blocks, s.arena.Retain(s.tables[i].rows()[:blocksOf(n)]))
	}
	s.shares = true
	s.arena.mu.Lock()
	defer s.arena.mu.Unlock()
	if s.arena.segments == nil {
		s.arena.segments = map[*Segment]bool{}
	}
	s.arena.segments[g] = true
	return g, nil
}

// Tokens is the number of tokens whose rows the segment has.
func (g *Segment) Tokens() int { return g.tokens }

// Release gives the segment up; stores that attached it keep its rows. A second one does
// nothing.
func (g *Segment) Release() {
	g.arena.mu.Lock()
	delete(g.arena.segments, g)
	g.arena.mu.Unlock()
	for _, blocks := range g.blocks {
		g.arena.Release(blocks)
	}
	g.blocks, g.tokens = nil, 0
}

// Attach begins the store of a prompt that is being read with the tokens of a segment of
// the same arena, shape and heads. It takes no memory.
func (s *Store) Attach(g *Segment) error {
	switch {
	case s.tokens+s.staged > 0 || !s.sealed || s.evicts():
		return errors.New("kvcache: a segment is attached to an empty prefill store only")
	case g.arena != s.arena || g.heads != s.heads || g.g.Layers != s.g.Layers || g.g.Layout != s.g.Layout || s.g.Windows != nil:
		return errors.New("kvcache: Attach of a segment of another arena or shape")
	case g.tokens == 0:
		return errors.New("kvcache: Attach of a segment that was released")
	}
	for i := range s.tables {
		t := &s.tables[i]
		t.planes[rowsPlane].blocks, t.n = s.arena.Retain(g.blocks[i]), g.tokens
	}
	s.tokens, s.shares = g.tokens, true
	return nil
}

// Shared is how many of Bytes other stores or segments hold too.
func (s *Store) Shared() int64 {
	bytes := int64(0)
	for i := range s.tables {
		for _, b := range s.tables[i].rows()[s.tables[i].gone:] {
			if s.arena.IsShared(b) {
				bytes += int64(len(b))
			}
		}
	}
	return bytes
}

// unshare copies the blocks that the next token will be written into and that others hold
// too: all or none. Only the block of the next position can be one, in heads that keep
// every token.
func (s *Store) unshare() error {
	at := s.tokens / tensor.BlockSlots
	if !s.shares || s.tokens%tensor.BlockSlots == 0 {
		return nil
	}
	var shared []*table
	for i := range s.tables {
		if t := &s.tables[i]; t.rule.KeepsAll() && s.arena.IsShared(t.rows()[at]) {
			shared = append(shared, t)
		}
	}
	copies, err := s.arena.Alloc(s.g.Layout.BlockBytes(), len(shared))
	if err != nil {
		return err
	}
	for i, t := range shared {
		copy(copies[i], t.rows()[at])
		s.arena.Release(t.rows()[at : at+1])
		t.rows()[at] = copies[i]
	}
	s.shares = false
	return nil
}

// blockID is a block as a key.
type blockID struct {
	at   *byte
	size int
}

// cached are the blocks that segments hold, and how many of them hold each.
func (a *Arena) cached() map[blockID]int32 {
	count := map[blockID]int32{}
	for g := range a.segments {
		for _, b := range slices.Concat(g.blocks...) {
			count[blockID{&b[0], len(b)}]++
		}
	}
	return count
}
