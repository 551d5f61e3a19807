package kvcache

import (
	"fmt"

	"shoal/tensor"
)

// Store is one sequence on one socket: KV heads [Lo, Hi) of every layer.
//
// One goroutine at a time calls Reserve, Commit, Rollback and the hand-over; Write,
// Blocks, Len and Positions of different (layer, head) pairs may run concurrently
// between them, Blocks and Fetch also beside a Write or View of the same pair.
type Store struct {
	arena   *Arena
	g       Geometry
	policy  Policy
	heads   tensor.Span
	tables  []table // [layer][head]
	prompt  int     // tokens at the end of prefill: what Open was told
	tokens  int     // committed
	staged  int     // reserved beyond them
	sealed  bool    // tokens may be written
	pending int     // tokens that Open announced, until Seal
	undo    undo
	run     int   // tokens of a step for which undo rows are kept
	charge  int64 // bytes of slot tables booked in the arena
}

// table is one head of one layer.
type table struct {
	Head
	rule      Policy // Geometry.Rule; Full while a prompt is being read
	blocks    [][]byte
	half      [][]byte  // Needs.HalfKeys: rotate_half of the keys, beside blocks
	offsets   []int32   // Needs.CachePositions: [slots], see Relative
	n         int       // slots in use: the highest that was written, + 1
	attention []float32 // observed in the running step, for Observer
	filled    []uint64  // a bit per slot that came in between Open and Seal
	holes     int       // empty slots below n
	order     [][]byte  // of Window.view
	ring      int       // slots of the layer's window, while a prompt is read; 0: it sees everything
	gone      int       // blocks that were freed behind it
}

// NewPrefill makes the store of a prompt that is being read, for KV heads
// [heads.Lo, heads.Hi) of every layer. It keeps every token: policies act at the
// end of prefill. Only layers with a window free what lies behind it, step by step.
// It holds no memory before Reserve.
func NewPrefill(a *Arena, g Geometry, heads tensor.Span) *Store {
	s := newStore(a, g, heads, Full{})
	s.sealed = true
	for i := range s.tables {
		t := &s.tables[i]
		if w, ok := g.Rule(t.Layer, s.policy).(Window); ok {
			t.ring = w.ring()
		}
	}
	return s
}

// NewStore makes the store of the sequence's owner: all KV heads, under policy p.
// Open it, fill it, and Seal it before tokens are written.
func NewStore(a *Arena, g Geometry, p Policy) *Store {
	s := newStore(a, g, tensor.Span{Lo: 0, Hi: g.KVHeads}, p)
	for i := range s.tables {
		t := &s.tables[i]
		t.rule = g.Rule(t.Layer, p)
	}
	return s
}

func newStore(a *Arena, g Geometry, heads tensor.Span, p Policy) *Store {
	if heads.Lo < 0 || heads.Hi > g.KVHeads || heads.Lo > heads.Hi {
		panic(fmt.Sprintf("kvcache: heads [%d,%d) of a model with %d", heads.Lo, heads.Hi, g.KVHeads))
	}
	s := &Store{arena: a, g: g, policy: p, heads: heads, run: 1}
	s.tables = make([]table, g.Layers*(heads.Hi-heads.Lo))
	for i := range s.tables {
		t := &s.tables[i]
		t.rule = p
		t.Layer, t.Index = i/max(1, heads.Hi-heads.Lo), heads.Lo+i%max(1, heads.Hi-heads.Lo)
	}
	return s
}

// Heads are the KV heads that the store holds, of every layer.
func (s *Store) Heads() tensor.Span { return s.heads }

// Policy is the rule of the store; Full while a prompt is being read.
func (s *Store) Policy() Policy { return s.policy }

// Rule is what one layer of the store goes by.
func (s *Store) Rule(layer int) Policy { return s.table(layer, s.heads.Lo).rule }

// Layout is how the blocks hold a row.
func (s *Store) Layout() tensor.KVLayout { return s.g.Layout }

// Tokens is the number of committed tokens, evicted ones included: the position
// of the next.
func (s *Store) Tokens() int { return s.tokens }

// Prompt is the number of tokens that were there at the end of prefill.
func (s *Store) Prompt() int { return s.prompt }

// Bytes is what the store holds of its arena: blocks, slot tables and undo rows.
func (s *Store) Bytes() int64 {
	n, half := len(s.undo.blocks), 0
	for i := range s.tables {
		n += len(s.tables[i].blocks) - s.tables[i].gone
		half += len(s.tables[i].half)
	}
	return blockBytes(s.g, int64(n)) + int64(half)*int64(s.g.Layout.HalfBytes()) + s.charge
}

// Blocks are the blocks of a head, in slot order: slot i lies in block
// i/tensor.BlockSlots. The slice belongs to the store; blocks that a prompt's window has
// left behind are nil.
func (s *Store) Blocks(layer, head int) [][]byte { return s.table(layer, head).blocks }

// Fetch prefetches what Write of the token at pos will touch, where the policy can say so
// before.
func (s *Store) Fetch(layer, head, pos int) {
	t, slot := s.table(layer, head), pos
	if !t.rule.Identity() {
		run, ok := t.rule.(Runner)
		if !ok {
			return
		}
		slot, _ = run.Run(pos, 1)
	}
	if b := slot / tensor.BlockSlots; b < len(t.blocks) && t.blocks[b] != nil {
		s.g.Layout.Fetch(t.blocks[b], slot%tensor.BlockSlots)
	}
}

// Len is the number of slots to attend to, those written in the running step included.
func (s *Store) Len(layer, head int) int { return s.table(layer, head).n }

// Head shows a head as its policy sees it. Positions belong to the store.
func (s *Store) Head(layer, head int) *Head { return &s.table(layer, head).Head }

// Position is the true position of the token in a slot, -1 when the slot is empty.
func (s *Store) Position(layer, head, slot int) int {
	t := s.table(layer, head)
	switch {
	case slot < 0 || slot >= t.n:
		return -1
	case t.rule.Identity():
		return slot
	}
	return int(t.Positions[slot])
}

// Read is the mask of slots that a query attends to ([group][KDim], after RoPE):
// nil for all slots below Len. mask is scratch of at least (Len+63)/64 words.
func (s *Store) Read(layer, head int, q []float32, mask []uint64) []uint64 {
	t := s.table(layer, head)
	if chosen := t.rule.Read(&t.Head, q, mask); chosen != nil || t.holes == 0 {
		return chosen
	}
	mask = mask[:(t.n+63)/64]
	clear(mask)
	for slot, pos := range t.Positions[:t.n] {
		if pos >= 0 {
			mask[slot/64] |= 1 << (slot % 64)
		}
	}
	return mask
}

// View is what the newest query ([group][KDim], after RoPE) attends to: the blocks in
// the order in which they are read, the number of their slots, and which of these it
// reads (nil: all). The blocks are valid until the next View of the head, or use of the
// scratch.
func (s *Store) View(layer, head int, q []float32, rope Rope, scratch *tensor.AttnScratch) ([][]byte, int, []uint64) {
	t := s.table(layer, head)
	if w, ok := t.rule.(Window); ok {
		blocks, n, mask := w.view(t.blocks, t.order, s.tokens+s.staged-1, scratch.Mask(w.ring()))
		t.order = blocks
		return blocks, n, mask
	}
	return s.ReadBlocks(layer, head, rope, scratch), t.n, s.Read(layer, head, q, scratch.Mask(t.n))
}

// Release gives everything back. The store is empty afterwards, and a second
// Release does nothing.
func (s *Store) Release() {
	for i := range s.tables {
		t := &s.tables[i]
		s.arena.Release(t.blocks[t.gone:])
		s.arena.Release(t.half)
		t.blocks, t.half, t.offsets, t.n, t.Positions, t.Scores, t.attention, t.filled, t.holes, t.gone = nil, nil, nil, 0, nil, nil, nil, nil, 0, 0
	}
	s.arena.Release(s.undo.blocks)
	s.arena.Uncharge(s.charge)
	s.undo, s.charge = undo{}, 0
	s.tokens, s.staged, s.prompt, s.pending, s.sealed = 0, 0, 0, 0, false
}

func (s *Store) table(layer, head int) *table {
	return &s.tables[s.index(layer, head)]
}

func (s *Store) index(layer, head int) int {
	if layer < 0 || layer >= s.g.Layers || head < s.heads.Lo || head >= s.heads.Hi {
		panic(fmt.Sprintf("kvcache: layer %d, head %d of a store with %d layers and heads [%d,%d)", layer, head, s.g.Layers, s.heads.Lo, s.heads.Hi))
	}
	return layer*(s.heads.Hi-s.heads.Lo) + head - s.heads.Lo
}
