package kvcache

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/rowblock"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// readTo runs tokens of a prompt through a store up to a number of tokens.
func readTo(t *testing.T, s *Store, tokens int) {
	t.Helper()
	for s.Tokens() < tokens {
		recurrentStep(t, s, 0, advance)
	}
}

// TestSnapshots starts prompts from a segment with a snapshot, whose bytes also cross the wire. The
// states have the bits of a prompt that was read from its first token, and all bytes are counted.
func TestSnapshots(t *testing.T) {
	for _, g := range recurrents {
		for _, heads := range []tensor.Span{{Hi: 3}, {Lo: 1, Hi: 3}} {
			t.Run(fmt.Sprint(g.Recurrent.KeyHeads, heads), func(t *testing.T) {
				a := memory.NewArena(1 << 24)
				defer a.Close()
				cold := NewPrefill(a, g, heads)
				readTo(t, cold, tensor.BlockSlots)
				first, err := cold.Share(0)
				if err != nil {
					t.Fatal(err)
				}
				if err := NewPrefill(a, g, heads).Attach([]*Segment{first}); err == nil {
					t.Fatal("a prompt began after a segment without a snapshot")
				}
				if err := first.KeepStates(cold); err != nil {
					t.Fatal(err)
				}
				if want := StateBytes(g, heads.Len()); a.Stats().Evictable != want || want == 0 {
					t.Errorf("%d bytes can be evicted, the snapshot has %d", a.Stats().Evictable, want)
				}
				readTo(t, cold, 70)
				if first.KeepStates(cold) == nil {
					t.Error("a second snapshot, or one of other tokens")
				}
				moved, err := NewSegment(a, g, heads, 0, first.Append(nil))
				if err != nil {
					t.Fatal(err)
				}
				rows := first.AppendStates(nil)
				if len(rows) != heads.Len()*StatesHeadBytes(g) {
					t.Fatalf("%d bytes of a snapshot, want %d a head", len(rows), StatesHeadBytes(g))
				}
				for _, bad := range [][]byte{nil, rows[1:], rows[:len(rows)-1], append(bytes.Clone(rows), 0)} {
					if err := moved.WriteStates(bad); !errors.Is(err, rowblock.Err) {
						t.Fatalf("a snapshot of %d bytes instead of %d: %v", len(bad), len(rows), err)
					}
				}
				if err := moved.WriteStates(rows); err != nil {
					t.Fatal(err)
				}
				for _, from := range []*Segment{first, moved} {
					warm := NewPrefill(a, g, heads)
					if err := warm.Attach([]*Segment{from}); err != nil {
						t.Fatal(err)
					}
					readTo(t, warm, 70)
					if !bytes.Equal(statesOf(t, warm, 70), statesOf(t, cold, 70)) {
						t.Error("a prompt that began from a snapshot has other states")
					}
					if want := PrefillBytes(g, heads.Len(), 70, Full()); warm.Bytes() != want {
						t.Errorf("%d bytes of a warm prompt, want %d", warm.Bytes(), want)
					}
					warm.Release()
				}
				cold.Release()
				first.Release()
				moved.DropExtras()
				if moved.HasStates() {
					t.Error("a snapshot is left after it was dropped")
				}
				moved.Release()
				if a.Used() != 0 {
					t.Errorf("%d bytes are left", a.Used())
				}
			})
		}
	}
}

// TestRollBackOfPrompts: the tokens of a draft model advance its states in place, and a copy undoes them.
func TestRollBackOfPrompts(t *testing.T) {
	g := recurrents[0]
	a := memory.NewArena(1 << 24)
	defer a.Close()
	s := NewPrefill(a, g, tensor.Span{Hi: 3})
	readTo(t, s, 5)
	before := statesOf(t, s, 5)
	if err := s.States().Save(); err != nil {
		t.Fatal(err)
	}
	if err := s.Reserve(8); err != nil {
		t.Fatal(err)
	}
	for pos := 5; pos < 8; pos++ {
		write(s, pos, pos+1)
		advance(s, pos, 1)
	}
	s.Rollback()
	if !bytes.Equal(statesOf(t, s, 5), before) {
		t.Error("rejected tokens left a trace")
	}
	readTo(t, s, 9)
	if want := PrefillBytes(g, 3, 9, Full()) + StateBytes(g, 3); s.Bytes() != want {
		t.Errorf("%d bytes, want %d", s.Bytes(), want)
	}
	if err := s.State(0, 0).Prompt(10); err == nil {
		t.Error("a token was skipped")
	}
	s.Release()
	if a.Used() != 0 {
		t.Errorf("%d bytes are left", a.Used())
	}
}

// TestCopyIsOfItsTokens: memory for another copy is not the copy that was dropped.
func TestCopyIsOfItsTokens(t *testing.T) {
	g := recurrents[0]
	a := memory.NewArena(1 << 24)
	defer a.Close()
	s := NewPrefill(a, g, tensor.Span{Hi: 3})
	readTo(t, s, tensor.BlockSlots)
	for name, end := range map[string]func(){
		"dropped": s.States().DropCopy,
		"taken":   func() { a.Release(s.States().Take(tensor.BlockSlots)) },
	} {
		if err := s.States().Save(); err != nil {
			t.Fatal(err)
		}
		if _, err := s.AppendCopy(nil, 0); err != nil {
			t.Fatal(err)
		}
		end()
		if err := s.States().ReserveCopy(); err != nil {
			t.Fatal(err)
		}
		if _, err := s.AppendCopy(nil, 0); err == nil {
			t.Errorf("%s: states that were not copied are sent", name)
		}
	}
	s.Release()
}
