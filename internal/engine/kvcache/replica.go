package kvcache

import (
	"fmt"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// A replica is a second Store of a sequence on another socket. It is opened with the rows of
// ExportSlots, then gets every row that decode writes. Its policy makes the same choices, since
// they depend on positions alone. Policies whose scores change in decode have no replicas.

// Sealed reports whether the store is complete, so that tokens may be written.
func (s *Store) Sealed() bool { return s.sealed }

// Staged is the number of reserved tokens beyond Tokens: those of the running step.
func (s *Store) Staged() int { return s.staged }

// TokenBytes is the size of one token's update of a replica: a row of every head of every layer, and
// the records of recurrent layers.
func TokenBytes(g Geometry) int {
	return g.rowBytes(g.KVHeads, tensor.KVLayout.RowBytes) + recordRowBytes(g)
}

// ExportToken appends the rows of the token at pos, which the running step wrote: TokenBytes in
// all, in the order of layers, then heads.
func (s *Store) ExportToken(dst []byte, pos int) []byte {
	s.checkStaged(pos)
	for i := range s.tables {
		t, slot := &s.tables[i], pos
		l := t.layout
		block := []byte(nil)
		if !t.rule.KeepsAll() {
			entries := s.undo.entries[i*s.undo.per:][:s.undo.per]
			slot = int(entries[pos-s.tokens].slot) - 1
			if slot < 0 {
				panic(fmt.Sprintf("kvcache: position %d was not written in this step", pos))
			}
			for j := pos - s.tokens + 1; j < len(entries) && block == nil; j++ {
				if int(entries[j].slot)-1 == slot { // a later token of the step took the slot
					block = make([]byte, l.BlockBytes())
					rows, at := s.undo.row(t, j)
					l.LoadRow(block, slot%tensor.BlockSlots, rows, at)
				}
			}
		}
		if block == nil {
			block = t.rows()[slot/tensor.BlockSlots]
		}
		at := len(dst)
		dst = append(dst, make([]byte, l.RowBytes())...)
		l.ExportRow(dst[at:], block, slot%tensor.BlockSlots)
	}
	return s.exportRecords(dst, pos)
}

// ImportToken is Write of a token's rows from ExportToken of another store of the same sequence.
// Errors wrap ErrRows.
func (s *Store) ImportToken(pos int, rows []byte) error {
	if want := TokenBytes(s.g); len(rows) != want {
		return fmt.Errorf("%w: a token has %d bytes, not %d", ErrRows, want, len(rows))
	}
	s.checkStaged(pos)
	for i := range s.tables {
		t, slot := &s.tables[i], pos
		if !t.rule.KeepsAll() {
			if s.undo.entries[i*s.undo.per+pos-s.tokens].slot > 0 {
				s.rewind(t, pos-s.tokens)
			}
			slot = s.stage(t, pos)
		}
		t.layout.ImportRow(t.rows()[slot/tensor.BlockSlots], slot%tensor.BlockSlots, rows)
		rows = rows[t.layout.RowBytes():]
		s.updateHalf(t, slot)
		s.reindex(t, slot, slot+1)
		t.n = max(t.n, slot+1)
	}
	s.importRecords(pos, rows)
	return nil
}

func (s *Store) checkStaged(pos int) {
	if pos < s.tokens || pos >= s.tokens+s.staged {
		panic(fmt.Sprintf("kvcache: position %d, reserved are [%d,%d)", pos, s.tokens, s.tokens+s.staged))
	}
}
