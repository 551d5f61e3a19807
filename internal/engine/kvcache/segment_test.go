package kvcache

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// chainOf returns segments of the first n blocks of a text, made while it is read as a prompt.
func chainOf(t testing.TB, a *memory.Arena, g Geometry, heads tensor.Span, prompt, n int) (chain []*Segment, source *Store) {
	t.Helper()
	source = NewPrefill(a, g, heads)
	for source.Tokens() < prompt {
		from := source.Tokens()
		more := min(50, prompt-from)
		if err := source.Reserve(from + more); err != nil {
			t.Fatal(err)
		}
		write(source, from, from+more)
		for len(chain) < n && (len(chain)+1)*tensor.BlockSlots <= from+more {
			seg, err := source.Share(len(chain))
			if err != nil {
				t.Fatal(err)
			}
			chain = append(chain, seg)
		}
		source.Commit(more)
	}
	return chain, source
}

// Several stores read the segments of a text and continue after them independently: none has another's
// tokens, failed steps leave no trace, and the arena's exclusive, shared and evictable bytes are exact.
// Layers with a window hold the same rows as without a shared segment.
func TestSegments(t *testing.T) {
	for name, g := range map[string]Geometry{"plain": small, "windows": windowed, "mixed": mixed} {
		t.Run(name, func(t *testing.T) {
			heads := tensor.Span{Lo: 0, Hi: g.KVHeads}
			rapid.Check(t, func(r *rapid.T) {
				a := memory.NewArena(1 << 30)
				defer a.Close()
				prompt := rapid.IntRange(64, 300).Draw(r, "source")
				n := rapid.IntRange(1, prompt/tensor.BlockSlots).Draw(r, "segments")
				chain, source := chainOf(t, a, g, heads, prompt, n)
				one, window := SegmentBytes(g, g.KVHeads)
				whole := int64(n) * (one + window)
				if s := a.Stats(); s.Used != source.Bytes()+whole-source.Shared() || s.Shared != source.Shared() {
					r.Fatalf("%+v; the source has %d bytes and shares %d", s, source.Bytes(), source.Shared())
				}
				source.Release()
				check := func(what string, used, shared, evictable int64) {
					t.Helper()
					if s := a.Stats(); s.Used != used || s.Shared != shared || s.Evictable != evictable {
						r.Fatalf("%s: %d used, %d shared, %d evictable; want %d, %d, %d", what, s.Used, s.Shared, s.Evictable, used, shared, evictable)
					}
				}
				check("without its source", whole, 0, whole)

				at := n * tensor.BlockSlots
				alone := read(t, memory.NewArena(1<<30), g, heads, at, 64)
				var stores []*Store
				held := int64(0)
				for range rapid.IntRange(1, 4).Draw(r, "stores") {
					s := NewPrefill(a, g, heads)
					if err := s.Attach(chain); err != nil {
						r.Fatal(err)
					}
					if s.Bytes() != alone.Bytes() || s.Shared() != s.Bytes() {
						r.Fatalf("attached: %d bytes, %d of them shared; one that read the text has %d", s.Bytes(), s.Shared(), alone.Bytes())
					}
					held = s.Bytes()
					stores = append(stores, s)
				}
				check("attached", whole, held, whole-held)
				for _, s := range stores {
					more := rapid.IntRange(1, 100).Draw(r, "more")
					if err := s.Reserve(at + more); err != nil {
						r.Fatal(err)
					}
					write(s, at, at+more)
					s.Rollback()
					step(t, s, more)
				}
				used := whole
				for _, s := range stores {
					used += s.Bytes() - s.Shared()
					if g.Windows == nil {
						checkRows(t, s)
					}
				}
				if s := a.Stats(); s.Used != used || s.Used-s.Evictable-s.Shared != used-whole {
					r.Fatalf("gone on: %+v, want %d used, %d exclusive", s, used, used-whole)
				}
				for _, seg := range chain {
					seg.Release()
					seg.Release()
				}
				check("without the segments", a.Used(), a.Stats().Shared, 0)
				for _, s := range stores {
					if g.Windows == nil {
						checkRows(t, s)
					}
					s.Release()
				}
				check("released", 0, 0, 0)
			})
		})
	}
}

// A store that has read the contents of a segment frees its own rows for them.
func TestSegmentsAreAdopted(t *testing.T) {
	a := memory.NewArena(1 << 30)
	defer a.Close()
	heads := tensor.Span{Lo: 0, Hi: 3}
	chain, source := chainOf(t, a, small, heads, 200, 3)
	source.Release()
	s := read(t, a, small, heads, 130, 64)
	want := dump(s)
	for i, seg := range chain[:2] {
		if err := s.Deduplicate(seg, i); err != nil {
			t.Fatal(err)
		}
	}
	if got := dump(s); got != want {
		t.Fatal(diff(got, want))
	}
	one, _ := SegmentBytes(small, 3)
	if st := a.Stats(); st.Used != 4*one || st.Shared != 2*one || st.Evictable != one {
		t.Fatalf("%+v: want 4 blocks of a head, 2 shared, 1 evictable, of %d bytes", st, one)
	}
	if s.Deduplicate(chain[2], 2) == nil || s.Deduplicate(chain[1], 0) == nil {
		t.Error("a block was replaced that is not there")
	}
}

// A step that cannot copy its shared blocks allocates nothing.
func TestSharedCopyIsAllOrNothing(t *testing.T) {
	a := memory.NewArena(PrefillBytes(small, 3, 70, Full()) + blockBytes(small.Layout, 5))
	defer a.Close()
	all := tensor.Span{Lo: 0, Hi: 3}
	part, s := read(t, a, small, all, 70, 64), NewStore(a, small, Full())
	if err := s.Open(70, 70, all); err != nil {
		t.Fatal(err)
	}
	for head := range 3 {
		if err := s.Adopt(part, head); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Seal(); err != nil {
		t.Fatal(err)
	}
	used, before := a.Used(), dump(s)
	mustBudget(t, s.Reserve(71))
	if a.Used() != used || dump(s) != before || s.Staged() != 0 {
		t.Fatalf("%d bytes after a refused copy, %d before", a.Used(), used)
	}
	part.Release()
	step(t, s, 1) // no longer shared
	checkRows(t, s)
}

func TestSegmentsAreChecked(t *testing.T) {
	a := memory.NewArena(1 << 30)
	defer a.Close()
	all := tensor.Span{Lo: 0, Hi: 3}
	chain, s := chainOf(t, a, small, all, 150, 2)
	for _, block := range []int{-1, 2} {
		if _, err := s.Share(block); err == nil {
			t.Errorf("block %d of 150 tokens was shared", block)
		}
	}
	if _, err := owned(t, a, Streaming(4, 60), 70).Share(0); err == nil {
		t.Error("a segment of a ring was made")
	}
	if _, err := read(t, a, windowed, all, 300, 64).Share(0); err == nil {
		t.Error("a block before the window was shared")
	}
	for what, to := range map[string]*Store{"a store in use": s, "another arena": NewPrefill(memory.NewArena(1<<30), small, all),
		"other heads": NewPrefill(a, small, tensor.Span{Lo: 0, Hi: 2})} {
		if to.Attach(chain) == nil {
			t.Errorf("%s attached it", what)
		}
	}
	if NewPrefill(a, small, all).Attach(chain[1:]) == nil {
		t.Error("the second block was attached as the first")
	}
	chain[0].Release()
	if NewPrefill(a, small, all).Attach(chain) == nil {
		t.Error("a released segment was attached")
	}
}
