package kvcache

import (
	"testing"

	"pgregory.net/rapid"

	"shoal/tensor"
)

// Several stores read one segment and go on from its end, each by itself: none sees
// another's tokens, failed steps leave no trace, a block is copied when the first token is
// written into it, and the arena's exclusive, shared and evictable bytes are exact.
func TestSegments(t *testing.T) {
	g := small
	heads := tensor.Span{Lo: 0, Hi: g.KVHeads}
	tables := int64(g.Layers * g.KVHeads)
	rapid.Check(t, func(r *rapid.T) {
		a := NewArena(1 << 30)
		defer a.Close()
		source := read(t, a, g, heads, rapid.IntRange(1, 200).Draw(r, "source"), 64)
		n := rapid.IntRange(1, source.Tokens()).Draw(r, "segment")
		alone := dump(read(t, NewArena(1<<30), g, heads, n, 64))
		seg, err := source.Share(n)
		if err != nil {
			r.Fatal(err)
		}
		whole := blockBytes(g, tables*blocksOf(n))
		check := func(what string, used, shared, evictable int64) {
			t.Helper()
			if s := a.Stats(); s.Used != used || s.Shared != shared || s.Evictable != evictable {
				r.Fatalf("%s: %d used, %d shared, %d evictable; want %d, %d, %d", what, s.Used, s.Shared, s.Evictable, used, shared, evictable)
			}
		}
		check("shared by its source", source.Bytes(), whole, 0)
		if source.Shared() != whole {
			r.Fatalf("the source shares %d bytes, want %d", source.Shared(), whole)
		}
		source.Release()
		check("without its source", whole, 0, whole)

		var stores []*Store
		for range rapid.IntRange(1, 4).Draw(r, "stores") {
			s := NewPrefill(a, g, heads)
			if err := s.Attach(seg); err != nil {
				r.Fatal(err)
			}
			if got := dump(s); got != alone {
				r.Fatalf("attached: %s", diff(got, alone))
			}
			stores = append(stores, s)
		}
		check("attached", whole, whole, 0)
		for _, s := range stores {
			more := rapid.IntRange(1, 100).Draw(r, "more")
			if err := s.Reserve(n + more); err != nil {
				r.Fatal(err)
			}
			write(s, n, n+more)
			s.Rollback()
			step(t, s, more)
		}
		used, kept := whole, blockBytes(g, tables*int64(n/tensor.BlockSlots))
		for _, s := range stores {
			if s.Shared() != kept {
				r.Fatalf("a store shares %d bytes, want %d: those of whole blocks", s.Shared(), kept)
			}
			used += s.Bytes() - kept
			checkRows(t, s)
		}
		check("gone on", used, kept, whole-kept)
		seg.Release()
		seg.Release()
		if len(stores) == 1 {
			kept = 0
		}
		check("without the segment", used-(whole-blockBytes(g, tables*int64(n/tensor.BlockSlots))), kept, 0)
		for _, s := range stores {
			checkRows(t, s)
			s.Release()
		}
		check("released", 0, 0, 0)
	})
}

// A step that cannot copy what it shares takes nothing.
func TestSegmentCopyIsAllOrNothing(t *testing.T) {
	a := NewArena(PrefillBytes(small, 3, 70, Full()) + blockBytes(small, 5))
	defer a.Close()
	s := read(t, a, small, tensor.Span{Lo: 0, Hi: 3}, 70, 64)
	seg, err := s.Share(70)
	if err != nil {
		t.Fatal(err)
	}
	used, before := a.Used(), dump(s)
	mustBudget(t, s.Reserve(71))
	if a.Used() != used || dump(s) != before || s.Staged() != 0 {
		t.Fatalf("%d bytes after a refused copy, %d before", a.Used(), used)
	}
	seg.Release()
	step(t, s, 1) // nobody shares it any more
	checkRows(t, s)
}

func TestSegmentsAreChecked(t *testing.T) {
	a := NewArena(1 << 30)
	defer a.Close()
	all := tensor.Span{Lo: 0, Hi: 3}
	s := read(t, a, small, all, 70, 64)
	for _, n := range []int{0, 71} {
		if _, err := s.Share(n); err == nil {
			t.Errorf("a segment of %d tokens of 70 was made", n)
		}
	}
	if _, err := owned(t, a, Streaming(4, 60), 70).Share(10); err == nil {
		t.Error("a segment of a ring was made")
	}
	seg, err := s.Share(70)
	if err != nil {
		t.Fatal(err)
	}
	for what, to := range map[string]*Store{"a store in use": s, "another arena": NewPrefill(NewArena(1<<30), small, all),
		"other heads": NewPrefill(a, small, tensor.Span{Lo: 0, Hi: 2}), "windows": NewPrefill(a, windowed, all)} {
		if to.Attach(seg) == nil {
			t.Errorf("%s attached it", what)
		}
	}
	seg.Release()
	if NewPrefill(a, small, all).Attach(seg) == nil {
		t.Error("a released segment was attached")
	}
}
