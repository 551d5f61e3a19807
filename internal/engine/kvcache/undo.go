package kvcache

import (
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// undo is the log of one running step of a policy that overwrites slots. Entry h*per+i is the i-th
// token of the step in table h. Tables of one layout share blocks of old rows, in row form
// (tensor.KVLayout.SaveRow). Entry e among the entries of these tables has row e%BlockSlots of block
// e/BlockSlots. So a run of tokens is saved in one copy. Entries are independent: heads may be
// written concurrently.
//
// It costs one row per head. In return a failed step leaves no trace, and a store can be copied
// elsewhere or drop rejected tokens without a rebuild.
type undo struct {
	blocks  [2][][]byte // of the tables with Geometry.Layout, of those with Geometry.Local
	local   tensor.KVLayout
	per     int // tokens of the step
	entries []undoEntry
	charge  int64 // bytes of kept scores booked in the arena
}

type undoEntry struct {
	slot  int32 // + 1; 0: nothing written yet
	old   int32 // evicted position; -1: the slot was empty
	n     int32 // previous number of slots in use
	score float32
	off   int32 // offset of the evicted token
}

// extend makes room for per tokens of each head. A running step keeps its saved entries.
func (s *Store) extend(per int) {
	u, was := &s.undo, s.undo.per
	u.per = per
	u.entries = append(u.entries, make([]undoEntry, per*len(s.tables)-len(u.entries))...)
	for h := len(s.tables) - 1; h > 0 && was > 0; h-- { // from the end, so that no entry overwrites an unmoved one
		for i := was - 1; i >= 0; i-- {
			from, to := h*was+i, h*per+i
			e := u.entries[from]
			u.entries[from] = undoEntry{}
			u.entries[to] = e
			if e.slot > 0 && e.old >= 0 {
				t := &s.tables[h]
				rows, at := u.rowOf(t, t.nth*per+i)
				src, i := u.rowOf(t, t.nth*was+i)
				to, of := s.arena.Window(), s.arena.Window()
				t.layout.MoveRow(to.Edit(rows), at, of.Read(src), i)
				to.Close()
			}
		}
	}
}

// keptUndone is the maximum number of tokens per step for which the entries' memory is kept for the next
// step.
const keptUndone = 64

func (u *undo) clear() {
	if u.per > keptUndone {
		u.entries = nil
	}
	u.entries, u.per = u.entries[:0], 0
}

// row returns the place of the old row of a table's i-th token: a block in row form, and the row in it.
func (u *undo) row(t *table, i int) ([]byte, int) { return u.rowOf(t, t.nth*u.per+i) }

// rowOf is row for the number of an entry among those of the table's layout.
func (u *undo) rowOf(t *table, e int) ([]byte, int) {
	return u.blocks[u.class(t)][e/tensor.BlockSlots], e % tensor.BlockSlots
}

// class returns the index in blocks of a table's rows.
func (u *undo) class(t *table) int {
	if t.layout == u.local && u.local.KDim > 0 {
		return 1
	}
	return 0
}

// undoNeed returns the number of blocks of each layout that undo a number of tokens.
func (s *Store) undoNeed(staged int) (need [2]int) {
	if staged == 0 {
		return need
	}
	var tables [2]int64
	for i := range s.tables {
		tables[s.undo.class(&s.tables[i])]++
	}
	for class, n := range tables {
		need[class] = int(undoBlocks(n, staged))
	}
	return need
}

// stage is assign; it saves the old row.
func (s *Store) stage(t *table, pos int) int {
	slot, old, at := s.assign(t, pos)
	if old != nil {
		to, of := s.arena.Window(), s.arena.Window()
		t.layout.SaveRow(to.Edit(old), at, of.Read(t.rows()[slot/tensor.BlockSlots]), slot%tensor.BlockSlots)
		to.Close()
	}
	return slot
}

// assign returns the slot of the token at pos, and the place for its old row; nil: it was empty.
func (s *Store) assign(t *table, pos int) (slot int, old []byte, at int) {
	i := pos - s.tokens
	entry := s.index(t.Layer, t.Index)*s.undo.per + i
	if t.Scores != nil {
		s.keepScores(t, i)
	}
	e := &s.undo.entries[entry]
	slot = t.rule.Slot(&t.Head, pos)
	*e = undoEntry{slot: int32(slot + 1), old: int32(t.position(slot)), n: int32(t.n)}
	if e.old >= 0 {
		if t.offsets != nil {
			e.off, t.offsets[slot] = t.offsets[slot], 0
			t.evicted(e.old, 1)
		}
		old, at = s.undo.row(t, i)
	}
	if t.Scores != nil {
		e.score, t.Scores[slot] = t.Scores[slot], 0
	}
	if t.rule.KeepsPrompt() {
		t.written = pos + 1
	} else {
		t.Positions[slot] = int32(pos)
	}
	return slot, old, at
}

// keepScores prepares the scores for the i-th token of a step: it adds the attention of the token
// before, and saves the present scores in a step of several tokens.
func (s *Store) keepScores(t *table, i int) {
	if s.staged == 1 {
		return
	}
	if i > 0 && len(t.before) == 0 { // the first token was written when only one was reserved
		e := s.undo.entries[s.index(t.Layer, t.Index)*s.undo.per]
		first := slices.Clone(t.Scores)
		first[e.slot-1] = e.score
		t.before = append(t.before, first)
	}
	if len(t.attention) > 0 {
		t.rule.scored.Observe(&t.Head, t.attention)
		t.attention = t.attention[:0]
	}
	t.before = append(t.before[:i], slices.Clone(t.Scores))
}

// stageRun is stage for as many of the m tokens from pos on as take successive slots of one block
// and successive rows in one block of the log. It does not save the rows: the caller copies them to
// old, unless that is nil.
func (s *Store) stageRun(t *table, pos, m int) (slot, n int, old []byte, at int) {
	i := pos - s.tokens
	first := s.index(t.Layer, t.Index)*s.undo.per + i
	n = min(m, tensor.BlockSlots-(t.nth*s.undo.per+i)%tensor.BlockSlots)
	if t.rule.runs == nil || n < 2 || t.offsets != nil {
		return s.stage(t, pos), 1, nil, 0
	}
	slot, n = t.rule.runs.Run(pos, n)
	n = min(n, tensor.BlockSlots-slot%tensor.BlockSlots)
	entries, positions := s.undo.entries[first:first+n], t.Positions[slot:slot+n]
	evicts, before := false, t.n
	for j := range entries {
		was := positions[j]
		entries[j] = undoEntry{slot: int32(slot + j + 1), old: was, n: int32(max(before, slot+j))}
		if j == 0 {
			entries[j].n = int32(before)
		}
		evicts = evicts || was >= 0
		positions[j] = int32(pos + j)
	}
	if evicts {
		old, at = s.undo.row(t, i)
	}
	return slot, n, old, at
}

// rollback undoes the tokens of the step from the n-th on, newest first.
func (s *Store) rollback(n int) {
	var r restored
	for i := range s.tables {
		t := &s.tables[i]
		if t.rule.KeepsAll() {
			t.n = min(t.n, s.tokens+n)
		} else {
			s.unwrite(t, n, &r)
		}
	}
	s.restore(&r)
	for i := range s.tables {
		t := &s.tables[i]
		if t.indexed > t.n {
			s.reindex(t, t.n, t.n)
		}
	}
}

// restored holds old rows on a device that return to their slots together, by the class of their tables.
type restored [2][]memory.Saved

// add adds the old row of a slot. It replaces that of a later token of the step in the same slot. The rows of
// a table are added together, and first is the first of them.
func (r *restored) add(class, first int, row memory.Saved) {
	of := r[class][first:]
	if i := slices.IndexFunc(of, func(x memory.Saved) bool { return x.Slot == row.Slot && &x.Block[0] == &row.Block[0] }); i >= 0 {
		of[i] = row
		return
	}
	r[class] = append(r[class], row)
}

// restore copies rows back to their slots, by one call of the device for each layout.
func (s *Store) restore(r *restored) {
	for class, l := range [...]tensor.KVLayout{s.g.Layout, s.g.Local} {
		s.arena.Restore(l, r[class])
	}
}

// rewind undoes the step's writes to an evicting table, from its n-th token on.
func (s *Store) rewind(t *table, n int) {
	var r restored
	s.unwrite(t, n, &r)
	s.restore(&r)
}

// unwrite is rewind, newest token first, which leaves rows on a device to restore.
func (s *Store) unwrite(t *table, n int, r *restored) {
	first := len(r[s.undo.class(t)])
	base := s.index(t.Layer, t.Index) * s.undo.per
	for j := s.undo.per - 1; j >= n; j-- {
		if s.undo.entries[base+j].slot > 0 {
			if old, ok := s.putBack(t, base, j); ok {
				r.add(s.undo.class(t), first, old)
			}
			t.attention = t.attention[:0] // of that token, or a later one
		}
	}
	if n < len(t.before) {
		copy(t.Scores, t.before[n])
		t.before = t.before[:n]
	}
}

// putBack undoes the i-th token of the step in a table whose entries start at base. It returns the old row
// if that is on a device, for restore.
func (s *Store) putBack(t *table, base, i int) (old memory.Saved, later bool) {
	entry := base + i
	e := s.undo.entries[entry]
	s.undo.entries[entry] = undoEntry{}
	slot := int(e.slot - 1)
	if e.old >= 0 {
		rows, at := s.undo.row(t, i)
		old = memory.Saved{Block: t.rows()[slot/tensor.BlockSlots], Slot: slot % tensor.BlockSlots, Rows: rows, Row: at}
		if later = s.arena.OnDevice(); !later {
			t.layout.LoadRow(old.Block, old.Slot, rows, at)
			s.updateHalf(t, slot)
		}
	}
	if t.rule.KeepsPrompt() {
		t.written = s.tokens + i
	} else {
		t.Positions[slot] = e.old
	}
	if e.old >= 0 && t.offsets != nil {
		t.offsets[slot] = e.off
		t.evicted(e.old, -1)
	}
	t.n = int(e.n)
	if t.Scores != nil {
		t.Scores[slot] = e.score
	}
	return old, later
}
