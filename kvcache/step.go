package kvcache

import (
	"fmt"

	"shoal/tensor"
)

// Reserve gets every block that a step needs to take the sequence to upTo tokens:
// all or nothing. Afterwards Write of the positions [Tokens, upTo) cannot fail.
// Reserving less than was reserved already does nothing. Errors are ErrBudget and
// ErrMemory.
func (s *Store) Reserve(upTo int) error {
	if !s.sealed {
		return fmt.Errorf("kvcache: reserve before the hand-over is complete (Open, fill, Seal)")
	}
	if upTo <= s.tokens+s.staged {
		return nil
	}
	staged := upTo - s.tokens
	undo := 0
	if s.overwrites(upTo) {
		undo = int(undoBlocks(int64(len(s.tables)), staged))
	}
	if err := s.grow(upTo, undo, func(*table) bool { return true }); err != nil {
		return fmt.Errorf("reserving tokens [%d,%d): %w", s.tokens, upTo, err)
	}
	s.staged = staged
	if s.evicts() {
		s.extend(staged)
	}
	return nil
}

// overwrites says whether in some table a token up to `tokens` has taken the slot of
// another.
func (s *Store) overwrites(tokens int) bool {
	for i := 0; i < len(s.tables); i += s.heads.Hi - s.heads.Lo { // a layer's heads go by one rule
		if overwrites(s.tables[i].rule, s.prompt, tokens) {
			return true
		}
	}
	return false
}

// evicts says whether some table does not keep every token.
func (s *Store) evicts() bool {
	for i := range s.tables {
		if !s.tables[i].rule.Identity() {
			return true
		}
	}
	return false
}

// room is the number of blocks of a table that holds `tokens` tokens.
func (s *Store) room(t *table, tokens int) int { return int(blocksOf(t.rule.Slots(s.prompt, tokens))) }

// grow gives the chosen tables room for tokens, and the undo log its blocks.
func (s *Store) grow(tokens, undo int, chosen func(*table) bool) error {
	need := max(0, undo-len(s.undo.blocks))
	grown, halves, charge := 0, 0, int64(0)
	for i := range s.tables {
		if t := &s.tables[i]; chosen(t) {
			n := max(0, s.room(t, tokens)-len(t.blocks))
			grown += n
			charge += int64(n) * tableBytes(t.rule)
			if t.rule.Needs().HalfKeys {
				halves += n
			}
		}
	}
	if err := s.arena.Charge(charge); err != nil {
		return err
	}
	blocks, err := s.arena.Alloc(s.g.Layout.BlockBytes(), need+grown)
	if err != nil {
		s.arena.Uncharge(charge)
		return err
	}
	var half [][]byte
	if halves > 0 {
		if half, err = s.arena.Alloc(s.g.Layout.HalfBytes(), halves); err != nil {
			s.arena.Release(blocks)
			s.arena.Uncharge(charge)
			return err
		}
	}
	s.charge += charge
	s.undo.blocks = append(s.undo.blocks, blocks[:need]...)
	blocks = blocks[need:]
	for i := range s.tables {
		t := &s.tables[i]
		if n := s.room(t, tokens) - len(t.blocks); n > 0 && chosen(t) {
			t.blocks = append(t.blocks, blocks[:n]...)
			blocks = blocks[n:]
			if t.rule.Needs().HalfKeys {
				t.half = append(t.half, half[:n]...)
				half = half[n:]
			}
			s.resizeTable(t)
		}
	}
	return nil
}

func (s *Store) resizeTable(t *table) {
	if t.rule.Identity() {
		return
	}
	slots := len(t.blocks) * tensor.BlockSlots
	for len(t.Positions) < slots {
		t.Positions = append(t.Positions, -1)
	}
	t.Positions = t.Positions[:slots]
	needs := t.rule.Needs()
	if needs.DecodeAttention {
		for len(t.Scores) < slots {
			t.Scores = append(t.Scores, 0)
		}
		t.Scores = t.Scores[:slots]
	}
	if needs.CachePositions {
		for len(t.offsets) < slots {
			t.offsets = append(t.offsets, 0)
		}
		t.offsets = t.offsets[:slots]
	}
}

// Write puts the key (KDim) and value (VDim) of the token at position pos, which
// must be reserved and not committed, into the slot that the policy names.
// Writing it again before Commit overwrites the same slot.
func (s *Store) Write(layer, head, pos int, k, v []float32) {
	s.WriteRun(layer, head, pos, 1, k, len(k), v, len(v))
}

// WriteRun evicts and inserts m tokens at once, in place (EQUIP, appendix D.5):
// Write for the positions from pos on, key and value of the i-th at k[i*ldk:] and
// v[i*ldv:]. Tokens of a step never take each other's slots as long as the policy
// has others, so any number of them may be committed.
func (s *Store) WriteRun(layer, head, pos, m int, k []float32, ldk int, v []float32, ldv int) {
	i := s.index(layer, head)
	if pos < s.tokens || m < 0 || m > s.tokens+s.staged-pos {
		panic(fmt.Sprintf("kvcache: write of positions [%d,%d), reserved are [%d,%d)", pos, pos+m, s.tokens, s.tokens+s.staged))
	}
	t := &s.tables[i]
	identity := t.rule.Identity()
	for j := 0; j < m; {
		slot, n, old, at := pos+j, m-j, []byte(nil), 0
		if identity {
			n = min(n, tensor.BlockSlots-slot%tensor.BlockSlots)
		} else {
			slot, n, old, at = s.stageRun(t, i*s.undo.per+slot-s.tokens, slot, n)
		}
		s.g.Layout.PutRun(t.blocks[slot/tensor.BlockSlots], slot%tensor.BlockSlots, n, k[j*ldk:], ldk, v[j*ldv:], ldv, old, at)
		for i := range n {
			s.turnHalf(t, slot+i)
		}
		t.n = max(t.n, slot+n)
		j += n
	}
}

// Expect says that steps of up to `tokens` tokens will follow, as in speculative
// decoding: the undo rows that they need are kept from one to the next, beyond what
// ResidentBytes counts, which is for steps of one token.
func (s *Store) Expect(tokens int) { s.run = max(tokens, 1) }

// Commit makes the first n tokens of the running step durable and forgets the
// others. n = 0 is Rollback.
func (s *Store) Commit(n int) {
	if n < 0 || n > s.staged {
		panic(fmt.Sprintf("kvcache: commit of %d tokens, %d are reserved", n, s.staged))
	}
	if n < s.staged {
		s.rollback(n)
	}
	s.tokens += n
	for i := range s.tables {
		t := &s.tables[i]
		if len(t.attention) > 0 {
			if o, ok := t.rule.(Observer); ok && n > 0 {
				o.Observe(&t.Head, t.attention)
			}
			t.attention = t.attention[:0]
		}
		t.Tokens = s.tokens
	}
	s.staged = 0
	s.undo.clear()
	s.trim()
}

// Rollback returns to the state of the last Commit: rows that the step overwrote
// are put back, and what only the step needed is freed.
func (s *Store) Rollback() { s.Commit(0) }

// Observe records the attention that the step's last query paid to each slot,
// summed over the query heads of the group, for policies with
// Needs.DecodeAttention. It takes effect at Commit. The slice is copied.
func (s *Store) Observe(layer, head int, attention []float32) {
	t := s.table(layer, head)
	t.attention = append(t.attention[:0], attention...)
}

// trim frees the blocks that the committed tokens do not need, so that the
// figures of ResidentBytes stay exact after a roll-back, and those of a prompt that lie
// behind a layer's window and the ring that Window.Keep takes.
func (s *Store) trim() {
	undo := 0
	if s.overwrites(s.tokens) {
		undo = int(undoBlocks(int64(len(s.tables)), s.run))
	}
	if undo < len(s.undo.blocks) {
		s.arena.Release(s.undo.blocks[undo:])
		s.undo.blocks = s.undo.blocks[:undo]
	}
	for i := range s.tables {
		t := &s.tables[i]
		if behind := (s.tokens - t.ring) / tensor.BlockSlots; t.ring > 0 && behind > t.gone {
			s.arena.Release(t.blocks[t.gone:behind])
			clear(t.blocks[t.gone:behind])
			t.gone = behind
		}
		want := s.room(t, s.tokens)
		if extra := len(t.blocks) - want; extra > 0 {
			s.arena.Release(t.blocks[want:])
			t.blocks = t.blocks[:want]
			if t.half != nil {
				s.arena.Release(t.half[want:])
				t.half = t.half[:want]
			}
			s.resizeTable(t)
			free := int64(extra) * tableBytes(t.rule)
			s.arena.Uncharge(free)
			s.charge -= free
		}
	}
}
