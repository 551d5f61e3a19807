package kvcache

import (
	"errors"
	"fmt"
	"sync"

	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Segment is one block of a text: the rows of tensor.BlockSlots tokens, from a multiple of that, of
// some KV heads of every layer, as prefill writes them. Several stores read them and none writes. A
// prompt is a chain of segments and the tokens after them.
type Segment struct {
	arena  *memory.Arena
	g      Geometry
	heads  tensor.Span
	at     int      // position of the first token, in blocks
	blocks [][]byte // [layer][head]

	mu     sync.Mutex // guards sums and states: Held reads them while other goroutines use the segment
	sums   []float32  // [layer without a window][head][tokens up to its end]; nil: none, see KeepSums
	states [][]byte   // [recurrent layer][head]: the states after its last token; nil: none, see KeepStates
}

// Share makes a segment of a full block of a prompt that is being read, including tokens of the
// running step. Call it before Commit, which frees the blocks that have left the windows of layers. The
// caller releases it. It also works on an owner's store if all its heads keep every token.
func (s *Store) Share(block int) (*Segment, error) {
	if !s.sealed || block < 0 || (block+1)*tensor.BlockSlots > s.tokens+s.staged {
		return nil, fmt.Errorf("kvcache: block %d of a store with %d tokens cannot be shared", block, s.tokens+s.staged)
	}
	own := make([][]byte, len(s.tables))
	for i := range s.tables {
		t := &s.tables[i]
		if !t.rule.KeepsAll() || block < t.freed {
			return nil, fmt.Errorf("kvcache: block %d of layer %d cannot be shared: it is not kept in place", block, t.Layer)
		}
		own[i] = t.rows()[block]
	}
	g := &Segment{arena: s.arena, g: s.g, heads: s.heads, at: block, blocks: s.arena.Retain(own)}
	s.shares = true
	s.arena.Register(g)
	return g, nil
}

// Held implements memory.Holder.
func (g *Segment) Held() (blocks [][]byte, own int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	own = 4 * int64(len(g.sums))
	for _, b := range g.states {
		own += int64(len(b))
	}
	return g.blocks, own
}

// Heads returns the KV heads whose rows it holds.
func (g *Segment) Heads() tensor.Span { return g.heads }

// Release releases the segment; stores that attached it keep its rows. It may be called twice.
func (g *Segment) Release() {
	g.DropExtras()
	g.arena.Unregister(g)
	g.arena.Release(g.blocks)
	g.blocks = nil
}

// Attach starts the store of a prompt with the tokens of the first segments of its text, of the
// same arena, shape and heads. It allocates nothing but recurrent states. In layers with a window it
// holds only the blocks in the windows of later tokens.
func (s *Store) Attach(chain []*Segment) error {
	if s.tokens+s.staged > 0 || !s.sealed || s.evicts() {
		return errors.New("kvcache: segments are attached to an empty prefill store only")
	}
	for i, g := range chain {
		if err := s.fits(g, i); err != nil {
			return err
		}
	}
	if n := len(chain); n > 0 {
		if err := s.startFrom(chain[n-1], n*tensor.BlockSlots); err != nil {
			return err
		}
	}
	s.tokens, s.shares = len(chain)*tensor.BlockSlots, true
	for i := range s.tables {
		t := &s.tables[i]
		if t.ring > 0 {
			t.freed = max(0, (s.tokens-t.ring)/tensor.BlockSlots)
		}
		rows := make([][]byte, len(chain))
		for j, g := range chain {
			rows[j] = g.blocks[i]
		}
		copy(rows[t.freed:], s.arena.Retain(rows[t.freed:]))
		clear(rows[:t.freed])
		t.planes[rowsPlane].blocks, t.n = rows, s.tokens
	}
	return nil
}

// Deduplicate replaces the store's own rows of a block by those of a segment of the same text, so that
// they are stored once. Both have the same bits. Like Share it must precede Commit.
func (s *Store) Deduplicate(g *Segment, block int) error {
	if err := s.fits(g, block); err != nil {
		return err
	}
	if s.evicts() || (g.at+1)*tensor.BlockSlots > s.tokens+s.staged {
		return fmt.Errorf("kvcache: block %d of a store with %d tokens cannot be replaced", g.at, s.tokens+s.staged)
	}
	for i := range s.tables {
		if t := &s.tables[i]; g.at >= t.freed {
			held := s.arena.Retain(g.blocks[i : i+1])
			s.arena.Release(t.rows()[g.at : g.at+1])
			t.rows()[g.at] = held[0]
		}
	}
	s.shares = true
	return nil
}

// fits returns an error if a segment cannot be block at of a store.
func (s *Store) fits(g *Segment, at int) error {
	switch {
	case g.blocks == nil:
		return errors.New("kvcache: a segment that was released")
	case g.arena != s.arena || g.heads != s.heads || g.g.Layers != s.g.Layers || g.g.Layout != s.g.Layout || g.g.Local != s.g.Local:
		return errors.New("kvcache: a segment of another arena or shape")
	case g.at != at:
		return fmt.Errorf("kvcache: block %d of a text as its block %d", g.at, at)
	}
	return nil
}

// SegmentBytes returns the size of a segment on a socket with this number of KV heads: in layers
// without a window, and in layers with one.
func SegmentBytes(g Geometry, heads int) (whole, windows int64) {
	plain := int64(g.unwindowed()) * int64(heads)
	return blockBytes(g.Layout, plain), blockBytes(g.rows(1), int64(g.Layers)*int64(heads)-plain)
}

// Shared is how many of Bytes other stores or segments hold too.
func (s *Store) Shared() int64 {
	bytes := int64(0)
	for i := range s.tables {
		for _, b := range s.tables[i].rows()[s.tables[i].freed:] {
			if s.arena.IsShared(b) {
				bytes += int64(len(b))
			}
		}
	}
	return bytes
}

// unshare copies shared blocks to which the next token will be written: all of them, or none after an error.
// In heads that keep every token, this can only be the block of the next position; before a ring, only the
// block in which the prompt ends.
func (s *Store) unshare() error {
	end := s.policy.selectable(s.prompt, s.tokens)
	at := end / tensor.BlockSlots
	if !s.shares || end%tensor.BlockSlots == 0 {
		return nil
	}
	var shared []*table
	for i := range s.tables {
		if t := &s.tables[i]; t.rule.KeepsPrompt() && !s.absent(t) && s.arena.IsShared(t.rows()[at]) {
			shared = append(shared, t)
		}
	}
	copies, err := s.arena.AllocEach(func(yield func(size int)) {
		for _, t := range shared {
			yield(t.layout.BlockBytes())
		}
	})
	if err != nil {
		return err
	}
	for i, t := range shared {
		s.arena.CopyBlock(copies[i], t.rows()[at])
		s.arena.Release(t.rows()[at : at+1])
		t.rows()[at] = copies[i]
		s.changes++
	}
	s.shares = false
	return nil
}
