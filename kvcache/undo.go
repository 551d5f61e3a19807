package kvcache

import "shoal/tensor"

// undo is the log of one running step of a policy that overwrites slots. Entry
// i*heads+h is the i-th token of the step in table h; its old row lies in exported
// form, in one piece, in row e%BlockSlots of block e/BlockSlots. Entries are independent, so heads may be
// written concurrently.
//
// It costs one row per head, and buys that a failed step leaves no trace: a
// store can be copied elsewhere, or drop rejected tokens, without a rebuild.
type undo struct {
	blocks  [][]byte
	entries []undoEntry
}

type undoEntry struct {
	slot  int32 // + 1; 0: nothing was written yet
	old   int32 // position that was evicted, -1: the slot was empty
	n     int32 // slots in use before
	score float32
	off   int32 // offset of the evicted token
}

func (u *undo) extend(entries int) {
	u.entries = append(u.entries, make([]undoEntry, entries-len(u.entries))...)
}

func (u *undo) clear() { u.entries = u.entries[:0] }

func (s *Store) undoRow(entry int) []byte {
	size := s.g.Layout.RowBytes()
	return s.undo.blocks[entry/tensor.BlockSlots][entry%tensor.BlockSlots*size:][:size]
}

// stage returns the slot of the token at pos. The first time it saves what the
// slot held; a repeated step finds the entry and goes to the same slot.
func (s *Store) stage(t *table, entry, pos int) int {
	e := &s.undo.entries[entry]
	if e.slot > 0 {
		slot := int(e.slot - 1)
		t.Positions[slot] = int32(pos)
		return slot
	}
	slot := t.rule.Write(&t.Head, pos)
	*e = undoEntry{slot: int32(slot + 1), old: t.Positions[slot], n: int32(t.n)}
	if e.old < 0 && slot < t.n {
		t.holes--
	}
	if e.old >= 0 {
		if t.offsets != nil {
			e.off, t.offsets[slot] = t.offsets[slot], 0
			t.evicted(e.old, 1)
		}
		s.g.Layout.ExportRow(s.undoRow(entry), t.blocks[slot/tensor.BlockSlots], slot%tensor.BlockSlots)
	}
	if t.Scores != nil {
		e.score, t.Scores[slot] = t.Scores[slot], 0
	}
	t.Positions[slot] = int32(pos)
	return slot
}

// rollback undoes the tokens of the step from the n-th on, newest first.
func (s *Store) rollback(n int) {
	for i := range s.tables {
		if t := &s.tables[i]; t.rule.Identity() {
			t.n = min(t.n, s.tokens+n)
		}
	}
	for entry := len(s.undo.entries) - 1; entry >= n*len(s.tables); entry-- {
		e := &s.undo.entries[entry]
		if e.slot == 0 {
			continue
		}
		t, slot := &s.tables[entry%len(s.tables)], int(e.slot-1)
		if e.old >= 0 {
			s.g.Layout.ImportRow(t.blocks[slot/tensor.BlockSlots], slot%tensor.BlockSlots, s.undoRow(entry))
			s.turnHalf(t, slot)
		}
		t.Positions[slot] = e.old
		if e.old >= 0 && t.offsets != nil {
			t.offsets[slot] = e.off
			t.evicted(e.old, -1)
		}
		t.n = int(e.n)
		if e.old < 0 && slot < t.n {
			t.holes++
		}
		if t.Scores != nil {
			t.Scores[slot] = e.score
		}
	}
}
