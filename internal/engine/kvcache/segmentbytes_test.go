package kvcache

import (
	"bytes"
	"errors"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/rowblock"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// A segment made from another's bytes holds its rows, on another arena but only for the same heads.
// A prompt that continues after it reads the same as one after the original.
func TestSegmentBytes(t *testing.T) {
	for name, g := range map[string]Geometry{"plain": small, "windows": windowed, "mixed": mixed} {
		t.Run(name, func(t *testing.T) {
			heads := tensor.Span{Lo: 0, Hi: g.KVHeads}
			a, b := memory.NewArena(1<<30), memory.NewArena(1<<30)
			defer a.Close()
			defer b.Close()
			chain, source := chainOf(t, a, g, heads, 200, 3)
			var rows []byte
			var again []*Segment
			for at, seg := range chain {
				rows = seg.Append(rows[:0])
				if s, err := NewSegment(b, g, heads, at, rows); err != nil {
					t.Fatal(err)
				} else {
					again = append(again, s)
				}
			}
			source.Release()
			one, window := SegmentBytes(g, g.KVHeads)
			if s := b.Stats(); s.Used != 3*(one+window) || s.Evictable != s.Used {
				t.Errorf("%+v: want %d bytes, all of them evictable", s, 3*(one+window))
			}
			read := func(a *memory.Arena, chain []*Segment) (all []byte) {
				s := NewPrefill(a, g, heads)
				defer s.Release()
				if err := s.Attach(chain); err != nil {
					t.Fatal(err)
				}
				for layer := range g.Layers {
					for head := range g.KVHeads {
						for _, block := range s.Blocks(layer, head) {
							all = append(all, block...)
						}
					}
				}
				return all
			}
			if !bytes.Equal(read(a, chain), read(b, again)) {
				t.Error("a prompt after the restored segments reads other rows")
			}
			for _, seg := range again {
				seg.Release()
			}
			if s := b.Stats(); s.Used != 0 {
				t.Errorf("%+v after all were released", s)
			}
			if _, err := NewSegment(b, g, heads, 2, rows[1:]); !errors.Is(err, rowblock.Err) {
				t.Errorf("rows that lack a byte: %v", err)
			}
			if _, err := NewSegment(b, g, heads, 1, rows); !errors.Is(err, rowblock.Err) || b.Used() != 0 {
				t.Errorf("another block of the text: %v, %d bytes in use", err, b.Used())
			}
			if _, err := NewSegment(memory.NewArena(one), g, tensor.Span{Lo: 0, Hi: g.KVHeads + 1}, 0, rows); !errors.Is(err, rowblock.Err) {
				t.Errorf("heads that are not there: %v", err)
			}
			if _, err := NewSegment(memory.NewArena(one+window-1), g, heads, 2, rows); !errors.Is(err, memory.ErrBudget) {
				t.Errorf("no room: %v", err)
			}
		})
	}
	same, other := small, small
	other.Layout.Type = tensor.Int8
	if Form(small) == Form(windowed) || Form(windowed) == Form(mixed) || Form(small) == Form(other) || Form(small) != Form(same) {
		t.Error("forms of different layouts are equal")
	}
}
