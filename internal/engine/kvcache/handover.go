package kvcache

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Open prepares an empty store for a sequence with prompt tokens at the end of prefill and tokens
// in its cache. These are equal unless a sequence moves between owners while it decodes. It
// allocates every block that the rows need, all or nothing. The adopted heads will come from a
// prefill store on the same arena by Adopt and need none. They must be empty unless the policy
// keeps the prompt in place.
func (s *Store) Open(prompt, tokens int, adopted tensor.Span) error {
	switch {
	case s.sealed || s.pending > 0:
		return errors.New("kvcache: Open of a store that is in use")
	case prompt < 1 || tokens < prompt:
		return fmt.Errorf("kvcache: Open with a prompt of %d and %d tokens", prompt, tokens)
	case adopted.Hi > adopted.Lo && !s.policy.KeepsPrompt():
		return fmt.Errorf("kvcache: policy %s moves rows, so no head can be adopted", s.policy.Name())
	}
	return s.open(prompt, tokens, false, func(t *table) bool {
		return t.Index >= adopted.Lo && t.Index < adopted.Hi && s.adopts(t, prompt)
	})
}

// adopts reports whether a table takes over the prompt's blocks without a copy. It does not in
// layers with a window. Under an index that replaces rows, layers that keep all rows do not either,
// so that such a store shares nothing.
func (s *Store) adopts(t *table, prompt int) bool {
	return t.rule.KeepsPrompt() && (s.policy.Shares(s.g, prompt) || !t.rule.Shares(s.g, prompt))
}

// OpenMoved is Open for a sequence whose rows another owner sends layer by layer as LayerBlocks.
func (s *Store) OpenMoved(prompt, tokens int) error {
	if s.sealed || s.pending > 0 || prompt < 1 || tokens < prompt {
		return fmt.Errorf("kvcache: OpenMoved of a store that is in use, or with a prompt of %d and %d tokens", prompt, tokens)
	}
	return s.open(prompt, tokens, true, func(*table) bool { return false })
}

func (s *Store) open(prompt, tokens int, moved bool, adopted func(*table) bool) error {
	s.prompt = prompt
	undo := 0 // tokens to undo
	if s.overwrites(tokens) {
		undo = 1
	}
	var err error
	for i := range s.tables {
		t := &s.tables[i]
		t.replaced = t.rule.plan(s.g, prompt).Replaced
		switch {
		case t.replaced == 0:
		case moved: // there are no rows to free
			t.planes[rowsPlane].blocks, t.freed = make([][]byte, t.replaced), t.replaced
		case adopted(t) && err == nil:
			t.rest, err = s.arena.Alloc(s.g.Layout.BlockBytes(), int(blocksOf(prompt))-t.replaced)
		}
	}
	if err == nil {
		err = s.states.Open(-1)
	}
	if err == nil {
		err = s.grow(tokens, undo, adopted)
	}
	if err == nil {
		err = s.openIndex(moved)
	}
	if err != nil {
		s.Release()
		return fmt.Errorf("opening a sequence of %d prompt tokens: %w", prompt, err)
	}
	s.pending = tokens
	for i := range s.tables {
		t := &s.tables[i]
		t.Prompt, t.written, t.filled = prompt, tokens, make([]uint64, (t.rule.Slots(prompt, tokens)+63)/64)
	}
	return nil
}

// Adopt takes over the blocks of one KV head, all layers, from a prefill store on the same arena
// without a copy. Both stores hold them until one is released or writes. from must hold exactly the
// prompt. Layers with a window are left to Keep.
func (s *Store) Adopt(from *Store, head int) error {
	switch {
	case !s.policy.KeepsPrompt():
		return fmt.Errorf("kvcache: policy %s moves rows, so no head can be adopted", s.policy.Name())
	case from.arena != s.arena:
		return errors.New("kvcache: Adopt from another arena: export the rows and import them")
	case from.tokens != s.pending || s.pending != s.prompt || from.staged != 0:
		return fmt.Errorf("kvcache: Adopt from a store with %d tokens (and %d not committed), the prompt has %d",
			from.tokens, from.staged, s.prompt)
	}
	for layer := range s.g.Layers {
		to, own := s.table(layer, head), from.table(layer, head)
		if !to.rule.KeepsPrompt() {
			continue
		}
		if !s.adopts(to, s.prompt) {
			for slot := range own.n {
				to.filled[slot/64] |= 1 << (slot % 64)
			}
			for i, b := range own.rows() {
				s.arena.CopyBlock(to.rows()[i], b)
			}
			to.n = own.n
			continue
		}
		if len(to.rows()) > 0 {
			return fmt.Errorf("kvcache: layer %d, head %d has blocks already: name it in Open's adopted heads", layer, head)
		}
		s.shares, from.shares = true, true
		to.planes[rowsPlane].blocks, to.n = s.arena.Retain(own.rows()), own.n
		for slot := range to.n {
			to.filled[slot/64] |= 1 << (slot % 64)
		}
	}
	return nil
}

// Keep copies the kept rows of one head of one layer from a prefill store of the same socket.
func (s *Store) Keep(from *Store, layer, head int, kept Kept) error {
	to, own := s.table(layer, head), from.table(layer, head)
	if s.pending != s.prompt || s.sealed {
		return errors.New("kvcache: Keep needs a store that was opened for a prompt")
	}
	if want := to.rule.Slots(s.prompt, s.prompt); len(kept.Positions) != want {
		return fmt.Errorf("kvcache: %d kept slots, policy %s has %d after a prompt of %d", len(kept.Positions), to.rule.Spec(), want, s.prompt)
	}
	src, dst := from.arena.Window(), s.arena.Window()
	defer dst.Close()
	for slot, pos := range kept.Positions {
		if pos < 0 || pos >= int32(own.n) {
			return fmt.Errorf("kvcache: kept position %d of a prompt of %d", pos, own.n)
		}
		if next := slot + 4; next < len(kept.Positions) { // an index may keep rows in any order
			if pos := kept.Positions[next]; pos >= 0 && pos < int32(own.n) {
				to.layout.Fetch(own.rows()[pos/tensor.BlockSlots], int(pos)%tensor.BlockSlots)
			}
		}
		row, of := dst.Edit(to.rows()[slot/tensor.BlockSlots]), src.Read(own.rows()[pos/tensor.BlockSlots])
		to.layout.CopySlot(row, slot%tensor.BlockSlots, of, int(pos)%tensor.BlockSlots)
		if to.Positions != nil {
			to.Positions[slot] = pos
		}
		if to.Scores != nil {
			to.Scores[slot] = kept.Scores[slot]
		}
		s.filled(to, slot)
	}
	if len(kept.Index) > 0 {
		return s.promptIndex.WriteIndex(kept.Index, layer, head)
	}
	return nil
}

// KeepState copies the states of KV heads h of one recurrent layer from the prefill store of the
// same socket.
func (s *Store) KeepState(from *Store, layer int, h tensor.Span) error {
	for head := h.Lo; head < h.Hi; head++ {
		if err := s.State(layer, head).Keep(from.State(layer, head), s.pending); err != nil {
			return err
		}
	}
	return nil
}

// KeepQueries copies the queries of a head's observation window that the owner needs.
func (s *Store) KeepQueries(seen *Statistics) error {
	t := s.table(seen.Layer, seen.Head)
	if n := int(queryBytes(s.g, t.rule, s.prompt)) / 4; n > 0 {
		return s.setQueries(t, slices.Clone(seen.window(n)))
	}
	return nil
}

// Seal ends the hand-over. Every slot of every head must have been filled. Afterwards tokens may be
// written, the first at position Tokens.
func (s *Store) Seal() error {
	return s.SealOn(inOrder, nil)
}

// inOrder calls f with each of 0 to n-1.
func inOrder(n int, f func(i int)) {
	for i := range n {
		f(i)
	}
}

// SealOn is Seal with parallel index building. ropes rotate the keys of each layer.
func (s *Store) SealOn(run Run, ropes Ropes) error {
	if s.sealed || s.pending == 0 {
		return errors.New("kvcache: Seal of a store that is not open")
	}
	for i := range s.tables {
		t, filled := &s.tables[i], 0
		slots := t.rule.Slots(s.prompt, s.pending)
		for _, w := range t.filled {
			filled += bits.OnesCount64(w)
		}
		if filled < slots {
			return fmt.Errorf("kvcache: hand-over is not complete: layer %d, head %d has %d of %d slots", t.Layer, t.Index, filled, slots)
		}
	}
	if err := errors.Join(s.states.Arrived(s.pending), s.divideMoved()); err != nil {
		return err
	}
	for i := range s.tables {
		t := &s.tables[i]
		t.filled = nil
		t.countEvicted(s.pending)
	}
	run(len(s.tables), func(i int) { s.extendIndex(&s.tables[i], s.tables[i].indexed, s.tables[i].n) })
	if err := s.buildIndex(run, ropes); err != nil {
		return err
	}
	s.indexed = 0
	for i := range s.tables {
		s.tables[i].queries = nil
	}
	s.arena.Uncharge(s.queryCharge)
	s.queryCharge = 0
	s.tokens, s.pending, s.sealed = s.pending, 0, true
	return nil
}
