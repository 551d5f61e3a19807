package kvcache

import (
	"fmt"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Store is one sequence on one socket: KV heads [Lo, Hi) of every layer.
//
// One goroutine at a time calls Reserve, Commit, Rollback and the hand-over; Write,
// Blocks, Len and Positions of different (layer, head) pairs may run concurrently
// between them, Blocks and Fetch also beside a Write or View of the same pair.
type Store struct {
	arena   *Arena
	g       Geometry
	policy  *Policy
	heads   tensor.Span
	tables  []table // [layer][head]
	prompt  int     // tokens at the end of prefill: what Open was told
	tokens  int     // committed
	staged  int     // reserved beyond them
	sealed  bool    // tokens may be written
	pending int     // tokens that Open announced, until Seal
	undo    undo
	run     int      // tokens of a step for which undo rows are kept
	charge  int64    // bytes of slot tables booked in the arena
	seen    int64    // and of observed queries, until Seal
	shares  bool     // blocks may be shared with other stores: the next write looks
	spilled *spilled // what lies in a file; nil: nothing

	indexed     int // pieces of the index that were made before Seal
	calibration *calibration
}

// table is one head of one layer.
type table struct {
	Head
	rule      *Policy // Geometry.Rule; Full while a prompt is being read
	window    int     // of the layer; 0: it sees everything
	planes    [planes]plane
	offsets   []int32     // [slots], see Policy.AtCachePositions
	n         int         // slots in use: the highest that was written, + 1
	indexed   int         // of these, the index has so many
	attention []float32   // of the newest token of the running step, for Scored evictions
	before    [][]float32 // scores before each token of a step of several
	filled    []uint64    // a bit per slot that came in between Open and Seal
	order     [][]byte    // of windowView
	queries   []float32   // of the observation window, between Open and Seal
	scale     float32     // of their products with keys
	bounds    [2]float32  // thresholds of a cache of clusters that was moved
	noted     int         // coarse clusters that came with rows, see note
	ring      int         // slots of the layer's window, while a prompt is read
	gone      int         // blocks that were freed: behind it, or since a file has them
	fetched   *fetched    // pages of those that a file has
	factors   *factors    // of the keys of those; nil: it has none
}

// rows are the blocks of keys and values.
func (t *table) rows() [][]byte { return t.planes[rowsPlane].blocks }

// NewPrefill makes the store of a prompt that is being read, for KV heads
// [heads.Lo, heads.Hi) of every layer. It keeps every token: policies act at the
// end of prefill. Only layers with a window free what lies behind it, step by step.
// It holds no memory before Reserve.
func NewPrefill(a *Arena, g Geometry, heads tensor.Span) *Store {
	plain := g
	plain.Windows = nil
	s := newStore(a, plain, heads, full)
	s.g, s.sealed = g, true
	for i := range s.tables {
		if w := g.window(s.tables[i].Layer); w > 0 {
			s.tables[i].ring = windowRing(w)
		}
	}
	return s
}

// NewStore makes the store of the sequence's owner: all KV heads, under policy p.
// Open it, fill it, and Seal it before tokens are written.
func NewStore(a *Arena, g Geometry, p *Policy) *Store {
	return newStore(a, g, tensor.Span{Lo: 0, Hi: g.KVHeads}, p)
}

func newStore(a *Arena, g Geometry, heads tensor.Span, p *Policy) *Store {
	if heads.Lo < 0 || heads.Hi > g.KVHeads || heads.Lo > heads.Hi {
		panic(fmt.Sprintf("kvcache: heads [%d,%d) of a model with %d", heads.Lo, heads.Hi, g.KVHeads))
	}
	s := &Store{arena: a, g: g, policy: p, heads: heads, run: 1}
	s.tables = make([]table, g.Layers*heads.Len())
	for i := range s.tables {
		t := &s.tables[i]
		t.Layer, t.Index = i/heads.Len(), heads.Lo+i%heads.Len()
		if t.window = g.window(t.Layer); t.Index > heads.Lo {
			t.rule = s.tables[i-1].rule
		} else {
			t.rule = g.Rule(t.Layer, p)
		}
		t.planes = g.planesOf(t.rule)
	}
	return s
}

// Heads are the KV heads that the store holds, of every layer.
func (s *Store) Heads() tensor.Span { return s.heads }

// Geometry is the shape of the model's cache.
func (s *Store) Geometry() Geometry { return s.g }

// Policy is the rule of the store; Full while a prompt is being read.
func (s *Store) Policy() *Policy { return s.policy }

// Rule is what one layer of the store goes by.
func (s *Store) Rule(layer int) *Policy { return s.table(layer, s.heads.Lo).rule }

// Layout is how the blocks hold a row.
func (s *Store) Layout() tensor.KVLayout { return s.g.Layout }

// Tokens is the number of committed tokens, evicted ones included: the position
// of the next.
func (s *Store) Tokens() int { return s.tokens }

// Prompt is the number of tokens that were there at the end of prefill.
func (s *Store) Prompt() int { return s.prompt }

// Bytes is what the store holds of its arena: planes, slot tables and undo rows. Blocks
// that it shares with others count whole, see Shared.
func (s *Store) Bytes() int64 {
	bytes := blockBytes(s.g, int64(len(s.undo.blocks))) + s.charge + s.seen + s.undo.charge
	for i := range s.tables {
		t := &s.tables[i]
		for _, p := range t.planes {
			bytes += int64(p.size) * int64(len(p.blocks))
		}
		bytes += t.factors.bytes() - blockBytes(s.g, int64(t.gone))
		if t.fetched != nil {
			bytes += int64(len(t.fetched.blocks) * t.rule.givenUp(s.g.Layout, tensor.BlockSlots))
		}
	}
	if s.spilled != nil {
		bytes += s.spilled.charged
	}
	return bytes
}

// Blocks are the blocks of a head, in slot order: slot i lies in block
// i/tensor.BlockSlots. The slice belongs to the store; blocks that a prompt's window has
// left behind are nil.
func (s *Store) Blocks(layer, head int) [][]byte { return s.table(layer, head).rows() }

// Read is how many blocks a View of a head has at most, about: those of the pages that its
// selector chooses, however they lie. It may be asked while the head is written: it counts the
// last block as full.
func (s *Store) Read(layer, head int) int {
	t := s.table(layer, head)
	all := len(t.rows())
	c := t.rule.Selector
	if c == nil {
		return all
	}
	page := c.Page()
	n := (c.Reads(all*tensor.BlockSlots) + page - 1) / page
	if page >= panelSlots { // pages are gathered
		n = (n*page + tensor.BlockSlots - 1) / tensor.BlockSlots
	}
	return min(n, all)
}

// Fetch prefetches what Write of the token at pos will touch, where the policy can say so
// before.
func (s *Store) Fetch(layer, head, pos int) {
	t, slot := s.table(layer, head), pos
	if !t.rule.KeepsAll() {
		if t.rule.runs == nil {
			return
		}
		slot, _ = t.rule.runs.Run(pos, 1)
	}
	if b := slot / tensor.BlockSlots; b < len(t.rows()) && t.rows()[b] != nil {
		s.g.Layout.Fetch(t.rows()[b], slot%tensor.BlockSlots)
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
	case t.rule.KeepsAll():
		return slot
	}
	return int(t.Positions[slot])
}

// View is what the query of the token at pos ([group][KDim], after RoPE) attends to: the
// blocks in the order in which they are read, the number of their slots, and which of these
// it reads (nil: all). Tokens behind pos may be there already where [Store.Together] says
// so. scale multiplies a product with a key. The blocks are valid until the next View of the
// head, or use of the scratch.
func (s *Store) View(layer, head, pos int, q []float32, scale float32, rope Rope, scratch *tensor.AttnScratch) ([][]byte, int, []uint64) {
	t := s.table(layer, head)
	if t.window > 0 {
		blocks, n, mask := windowView(t.window, t.rows(), t.order, pos, scratch.Mask(windowRing(t.window)+tensor.RunSlots))
		t.order = blocks
		return blocks, n, mask
	}
	n := t.rule.Slots(s.prompt, pos+1)
	switch c := t.rule.Selector.(type) {
	case slotSelector:
		if mask := c.SelectSlots(s.g.Layout, t.planes[indexPlane].blocks, n, Queries{q, s.g.group(), scale}, scratch); mask != nil {
			return scratch.PickSlots(t.rows(), mask, n)
		}
	case pageSelector:
		if pages := c.Select(s.g.Layout, t.planes[indexPlane].blocks, n, Queries{q, s.g.group(), scale}, scratch); pages != nil {
			switch {
			case t.factors != nil:
				return s.viewFactored(t, pages, n, rope, scratch)
			case t.fetched != nil:
				return s.viewSpilled(t, pages, n, scratch)
			}
			if c.Page() < panelSlots {
				return scratch.Pick(t.rows(), pages, c.Page(), n)
			}
			last := n - int(pages[len(pages)-1])*c.Page() // slots of the newest page
			return scratch.Gather(s.g.Layout, t.rows(), pages, c.Page()), (len(pages)-1)*c.Page() + min(last, c.Page()), nil
		}
	}
	return s.ReadBlocks(layer, head, rope, scratch), n, nil
}

// panelSlots are the slots whose keys lie in one piece. Larger pages are copied and then read as
// whole blocks; of smaller ones a copy would take as long as reading them where they are.
const panelSlots = 16

// Release gives everything back. The store is empty afterwards, and a second
// Release does nothing.
func (s *Store) Release() {
	s.dropSpilled()
	s.dropFactors()
	for i := range s.tables {
		t := &s.tables[i]
		s.arena.Release(t.rows()[t.gone:])
		for _, p := range t.planes[1:] {
			s.arena.Release(p.blocks)
		}
		*t = table{Head: Head{Layer: t.Layer, Index: t.Index}, rule: t.rule, window: t.window, ring: t.ring, planes: s.g.planesOf(t.rule)}
	}
	s.arena.Release(s.undo.blocks)
	s.arena.Uncharge(s.charge + s.seen + s.undo.charge)
	s.undo, s.charge, s.seen = undo{}, 0, 0
	s.tokens, s.staged, s.prompt, s.pending, s.sealed, s.shares, s.indexed, s.calibration = 0, 0, 0, 0, false, false, 0, nil
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
