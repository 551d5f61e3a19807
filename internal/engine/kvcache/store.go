package kvcache

import (
	"fmt"

	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/results"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/states"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/topk"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/window"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Store is one sequence on one socket: KV heads [Lo, Hi) of every layer.
//
// One goroutine at a time calls Reserve, Commit, Rollback and the hand-over. Between them, Write,
// Blocks, Len and Positions of different (layer, head) pairs may run concurrently; Blocks and Prefetch
// also during a Write or View of the same pair. Views of one head of a latent layout may too.
type Store struct {
	arena       *memory.Arena
	g           Geometry
	policy      *Policy
	heads       tensor.Span
	tables      []table     // [layer][head]
	prompt      int         // tokens at the end of prefill, from Open
	layers      tensor.Span // see Enter; empty: all
	tokens      int         // committed
	staged      int         // reserved beyond the committed ones
	sealed      bool        // tokens may be written
	pending     int         // tokens announced by Open, until Seal
	undo        undo
	changes     int      // see Changes
	trimmed     int      // changes+1 when no block was beyond the committed tokens; 0: never
	charge      int64    // bytes of slot tables charged to the arena
	queryCharge int64    // bytes of imported queries charged to the arena, until Seal
	shares      bool     // blocks may be shared with other stores: the next write must check
	spilled     *spilled // the part in a file; nil: none

	states states.Set // of recurrent layers

	// Score is that of a query with a key, for a PromptIndex. The owner sets it before Seal.
	Score tensor.Score
	// Results has the results that the PromptIndex computed from the same prompt before. The owner sets it before
	// Seal; nil: nothing is stored.
	Results *results.Prompt

	promptIndex StoreIndex  // nil: none
	replacer    RowReplacer // promptIndex, if it replaces rows
	indexed     int         // pieces of it done before Seal
}

// table is one head of one layer.
type table struct {
	Head
	rule      *Policy         // Geometry.Rule; Full during prefill
	layout    tensor.KVLayout // of a row
	nth       int             // number of the table among those of its layout
	window    int             // window of the layer; 0: none
	written   int             // tokens until the newest written one, in a head that keeps the prompt in place
	planes    [planes]plane
	offsets   []int32     // [slots], see Policy.AtCachePositions
	n         int         // slots in use: the highest written one + 1
	indexed   int         // slots in the index
	attention []float32   // attention of the newest token of the running step, for Scored evictions
	before    [][]float32 // scores before each token of a step with several
	filled    []uint64    // one bit per slot that arrived between Open and Seal
	order     [][]byte    // memory of window.View
	queries   []float32   // queries of the observation window, between Open and Seal
	ring      int         // slots of the layer's window during prefill
	freed     int         // freed blocks: outside of the window, or in a file
	fetched   *fetched    // pages of those blocks, if they are in a file
	replaced  int         // first blocks whose rows the index replaces
	rest      [][]byte    // memory for the other rows, while they belong to another store until Seal
	blocks    []int       // blocks of each head of the layer, after Divide
	mean      int         // of blocks
	moved     int         // blocks that came with the rows
}

// rows returns the blocks of keys and values.
func (t *table) rows() [][]byte { return t.planes[rowsPlane].blocks }

// NewPrefill returns the store of a prompt during prefill, for KV heads [heads.Lo, heads.Hi) of
// every layer. It keeps every token, since policies act at the end of prefill. Only layers with a
// window free old blocks, step by step. It holds no memory before Reserve.
func NewPrefill(a *memory.Arena, g Geometry, heads tensor.Span) *Store {
	plain := g
	plain.Windows = nil
	s := newStore(a, plain, heads, full)
	s.g, s.sealed, s.states.InPlace = g, true, true
	for i := range s.tables {
		if t := &s.tables[i]; g.window(t.Layer) > 0 {
			w := g.window(t.Layer)
			t.ring, t.layout, t.planes = window.Slots(w), g.rows(w), g.planesOf(t.rule, w)
		}
	}
	return s
}

// NewStore returns the store of the sequence's owner: all KV heads, under policy p. Open it, fill
// it, and Seal it before tokens are written.
func NewStore(a *memory.Arena, g Geometry, p *Policy) *Store {
	return newStore(a, g, tensor.Span{Lo: 0, Hi: g.KVHeads}, p)
}

func newStore(a *memory.Arena, g Geometry, heads tensor.Span, p *Policy) *Store {
	if heads.Lo < 0 || heads.Hi > g.KVHeads || heads.Lo > heads.Hi {
		panic(fmt.Sprintf("kvcache: heads [%d,%d) of a model with %d", heads.Lo, heads.Hi, g.KVHeads))
	}
	s := &Store{arena: a, g: g, policy: p, heads: heads, undo: undo{local: g.Local}}
	s.states = states.New(a, g.states(), heads, &s.tokens)
	s.tables = make([]table, g.Layers*heads.Len())
	var local int // tables with the layout Geometry.Local
	for i := range s.tables {
		t := &s.tables[i]
		t.Layer, t.Index = i/heads.Len(), heads.Lo+i%heads.Len()
		if t.window = g.window(t.Layer); t.Index > heads.Lo {
			t.rule = s.tables[i-1].rule
		} else {
			t.rule = g.Rule(t.Layer, p)
		}
		t.layout, t.planes = g.rows(t.window), g.planesOf(t.rule, t.window)
		if t.nth = i - local; t.layout != g.Layout {
			t.nth = local
			local++
		}
	}
	return s
}

// Heads returns the KV heads of every layer that the store holds.
func (s *Store) Heads() tensor.Span { return s.heads }

// Geometry returns the shape of the model's cache.
func (s *Store) Geometry() Geometry { return s.g }

// Policy returns the policy of the store; Full during prefill.
func (s *Store) Policy() *Policy { return s.policy }

// Rule returns the policy of one layer of the store.
func (s *Store) Rule(layer int) *Policy { return s.table(layer, s.heads.Lo).rule }

// Layout returns the layout of a row in a block, in the layers without a window.
func (s *Store) Layout() tensor.KVLayout { return s.g.Layout }

// Tokens returns the number of committed tokens, evicted ones included. It is the position of the next
// token.
func (s *Store) Tokens() int { return s.tokens }

// Prompt returns the number of tokens at the end of prefill.
func (s *Store) Prompt() int { return s.prompt }

// States returns the recurrent states of the sequence.
func (s *Store) States() *states.Set { return &s.states }

// State returns the recurrent state of a KV head. Recurrent layers are counted from 0, apart from those
// with keys and values.
func (s *Store) State(layer, head int) *states.State { return s.states.State(layer, head) }

// Bytes returns the memory that the store holds in its arena: planes, slot tables and undo rows. Shared
// blocks count whole, see Shared.
func (s *Store) Bytes() int64 {
	bytes := s.charge + s.queryCharge + s.undo.charge
	bytes += blockBytes(s.g.Layout, int64(len(s.undo.blocks[0]))) + blockBytes(s.g.Local, int64(len(s.undo.blocks[1])))
	for i := range s.tables {
		t := &s.tables[i]
		for _, p := range t.planes {
			bytes += int64(p.size) * int64(len(p.blocks))
		}
		bytes += blockBytes(t.layout, int64(len(t.rest)-t.freed))
		if t.fetched != nil {
			bytes += int64(len(t.fetched.blocks) * t.rule.spilledSize(s.g.Layout, tensor.BlockSlots))
		}
	}
	if s.spilled != nil {
		bytes += s.spilled.charged
	}
	bytes += s.states.Bytes()
	if s.promptIndex != nil {
		bytes += s.promptIndex.Bytes()
	}
	return bytes
}

// Changes counts the changes of the lists of blocks of a store that decodes: a device that has a copy of
// the lists makes another one when the number is another.
func (s *Store) Changes() int { return s.changes }

// Blocks returns the blocks of a head in slot order: slot i is in block i/tensor.BlockSlots. The
// slice belongs to the store. Blocks that a prompt's window has left are nil.
func (s *Store) Blocks(layer, head int) [][]byte { return s.table(layer, head).rows() }

// Read estimates the maximum number of blocks in a View of a head: those of the pages that its
// selector chooses, wherever they are. It may be called while the head is written, since it counts
// the last block as full.
func (s *Store) Read(layer, head int) int {
	t := s.table(layer, head)
	all := len(t.rows())
	c := t.rule.Selector
	if c == nil {
		return all
	}
	page, among := c.Page(), t.rule.selectable(s.prompt, all*tensor.BlockSlots)
	n := (c.Reads(among) + page - 1) / page
	if page >= panelSlots { // pages are gathered
		n = (n*page + tensor.BlockSlots - 1) / tensor.BlockSlots
	}
	return min(n+all-among/tensor.BlockSlots, all)
}

// Prefetch prefetches the memory that Write of the token at pos will touch, if the policy can name it
// in advance.
func (s *Store) Prefetch(layer, head, pos int) {
	t, slot := s.table(layer, head), pos
	if !t.rule.KeepsAll() {
		if t.rule.runs == nil {
			return
		}
		slot, _ = t.rule.runs.Run(pos, 1)
	}
	if b := slot / tensor.BlockSlots; b < len(t.rows()) && t.rows()[b] != nil {
		t.layout.Fetch(t.rows()[b], slot%tensor.BlockSlots)
	}
}

// Len returns the number of slots to attend to, including those written in the running step.
func (s *Store) Len(layer, head int) int { return s.table(layer, head).n }

// Head returns the state of a head for its policy. Positions belong to the store.
func (s *Store) Head(layer, head int) *Head { return &s.table(layer, head).Head }

// Position returns the true position of the token in a slot; -1: the slot is empty.
func (s *Store) Position(layer, head, slot int) int { return s.table(layer, head).position(slot) }

func (t *table) position(slot int) int {
	switch {
	case slot < 0 || slot >= t.n:
		return -1
	case t.rule.KeepsPrompt():
		return t.rule.ringPosition(t.Prompt, t.written, slot)
	}
	return int(t.Positions[slot])
}

// View returns the rows that the query q of the token at pos, [group][KDim] after RoPE, attends to. It
// gives their blocks in reading order, the number of slots, and a mask of the slots to read (nil: all).
// Tokens after pos may be there already if [Store.BatchedDecode] allows it. The blocks are valid until
// the next View of the head, or the next use of the scratch. If some of them are in a file, the scratch
// gets a function that loads them (tensor.AttnScratch.Load), and the next Attend uses it.
func (s *Store) View(
	layer, head, pos int, q []float32, score tensor.Score, rope Rope, scratch *tensor.AttnScratch,
) (blocks [][]byte, slots int, mask []uint64) {
	t := s.table(layer, head)
	scratch.Load = nil
	if t.window > 0 {
		ring, oldest := window.Slots(t.window), window.Oldest(t.window, pos, s.g.Chunked)
		blocks, slots, mask = window.View(ring, t.rows(), t.order, oldest, pos, scratch.Mask(ring+tensor.RunSlots))
		t.order = blocks
		return blocks, slots, mask
	}
	n := t.rule.Slots(s.prompt, pos+1)
	index, among := t.planes[indexPlane].blocks, t.rule.selectable(s.prompt, n)
	switch c := t.rule.Selector.(type) {
	case slotSelector:
		if mask := s.choose(c, t, n, q, score, scratch); mask != nil {
			if t.fetched != nil {
				return s.viewSlots(t, mask, n, scratch)
			}
			return scratch.PickSlots(t.rows(), mask, n)
		}
	case pageSelector:
		queries := Queries{q, s.g.group(), s.g.scoreOf(layer, head, score)}
		scratch.Chosen(0, (c.Reads(among)+n-among)/c.Page()+2) // memory for all pages
		if pages := withRingPages(c.Select(s.g.Layout, index, among, queries, scratch), c.Page(), n); pages != nil {
			switch {
			case t.replaced > 0:
				return s.replacer.View(layer, head, pages, n, rope, scratch)
			case t.fetched != nil:
				return s.viewSpilled(t, pages, n, scratch)
			}
			if c.Page() < panelSlots {
				return scratch.Pick(t.rows(), pages, c.Page(), n)
			}
			last := n - int(pages[len(pages)-1])*c.Page() // slots of the newest page
			slots = (len(pages)-1)*c.Page() + min(last, c.Page())
			return scratch.Gather(s.g.Layout, t.rows(), pages, c.Page()), slots, nil
		}
	}
	return s.ReadBlocks(layer, head, rope, scratch), n, nil
}

// Masks returns the slots of [Store.Blocks] that n successive tokens from pos on read, a bit for each slot. It
// returns nil if View must be called for each token: the policy does not choose single slots, or some rows are
// in a file. The query of token i is at q[i*ldq:], as for View. The rows of all tokens must be written. The
// masks are valid until the next use of the scratch.
func (s *Store) Masks(
	layer, head, pos, n int, q []float32, ldq int, score tensor.Score, scratch *tensor.AttnScratch,
) [][]uint64 {
	t := s.table(layer, head)
	c, ok := t.rule.Selector.(slotSelector)
	if !ok || t.window > 0 || t.fetched != nil || t.layout.Latent {
		return nil
	}
	masks := scratch.Masks(n, t.rule.Slots(s.prompt, pos+n))
	for i, mask := range masks {
		slots := t.rule.Slots(s.prompt, pos+i+1)
		chosen := s.choose(c, t, slots, q[i*ldq:][:s.g.group()*s.g.Layout.KDim], score, scratch)
		clear(mask[copy(mask, chosen):])
		if chosen == nil {
			topk.Mark(mask, 0, slots)
		}
	}
	return masks
}

// choose returns a mask of those of a head's first n slots that the query q reads; nil: all.
func (s *Store) choose(c slotSelector, t *table, n int, q []float32, score tensor.Score, scratch *tensor.AttnScratch) []uint64 {
	among := t.rule.selectable(s.prompt, n)
	scratch.Mask(n) // memory for the whole mask
	queries := Queries{q, s.g.group(), s.g.scoreOf(t.Layer, t.Index, score)}
	return withRingSlots(c.SelectSlots(s.g.Layout, t.planes[indexPlane].blocks, among, queries, scratch), among, n)
}

// ParallelViews reports whether several threads may call View for a head of a layer at the same time,
// each with its own scratch. They may not with a window, rows in files or replaced rows, since View then
// writes to memory of the head.
func (s *Store) ParallelViews(layer int) bool {
	for head := s.heads.Lo; head < s.heads.Hi; head++ {
		if t := s.table(layer, head); t.window > 0 || t.offsets != nil || t.replaced > 0 || t.fetched != nil {
			return false
		}
	}
	return true
}

// panelSlots is the number of slots whose keys are contiguous. Larger pages are copied and read as
// whole blocks. For smaller ones a copy would take as long as reading them in place.
const panelSlots = 16

// Release frees everything. The store is empty afterwards. Release may be called twice.
func (s *Store) Release() {
	s.dropSpilled()
	s.states.Release()
	if s.promptIndex != nil {
		s.promptIndex.Release()
	}
	for i := range s.tables {
		t := &s.tables[i]
		s.arena.Release(t.rest)
		s.arena.Release(t.rows()[t.freed:])
		for _, p := range t.planes[1:] {
			s.arena.Release(p.blocks)
		}
		if t.blocks != nil {
			t.rule = s.g.layer(t.Layer, s.policy)
		}
		*t = table{
			Head: Head{Layer: t.Layer, Index: t.Index}, rule: t.rule, layout: t.layout, nth: t.nth,
			window: t.window, ring: t.ring, planes: s.g.planesOf(t.rule, s.g.window(t.Layer)),
		}
	}
	s.arena.Release(s.undo.blocks[0])
	s.arena.Release(s.undo.blocks[1])
	s.arena.Uncharge(s.charge + s.queryCharge + s.undo.charge)
	s.undo, s.charge, s.queryCharge = undo{local: s.undo.local}, 0, 0
	s.tokens, s.staged, s.prompt, s.pending, s.sealed, s.shares, s.indexed, s.promptIndex, s.replacer = 0, 0, 0, 0, false, false, 0, nil, nil
	s.trimmed = 0
}

func (s *Store) table(layer, head int) *table {
	return &s.tables[s.index(layer, head)]
}

func (s *Store) index(layer, head int) int {
	if layer < 0 || layer >= s.g.Layers || head < s.heads.Lo || head >= s.heads.Hi {
		panic(fmt.Sprintf("kvcache: layer %d, head %d of a store with %d layers and heads [%d,%d)",
			layer, head, s.g.Layers, s.heads.Lo, s.heads.Hi))
	}
	return layer*(s.heads.Hi-s.heads.Lo) + head - s.heads.Lo
}
