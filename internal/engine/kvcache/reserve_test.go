package kvcache

import (
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// A reservation that does not fit leaves no memory in use, also not records of recurrent states.
func TestReserveOfStatesIsAllOrNothing(t *testing.T) {
	for i, g := range recurrents {
		failed := 0
		for room := int64(0); ; room += 1 << 10 {
			a := memory.NewArena(1 << 30)
			s := NewPrefill(a, g, tensor.Span{Hi: g.KVHeads})
			s.states.InPlace = false // as of a sequence that decodes
			if err := s.Reserve(s.Tokens() + 1); err != nil {
				t.Fatal(err)
			}
			s.Rollback()
			before := a.Used()
			if err := a.Charge(a.Budget() - before - room); err != nil {
				t.Fatal(err)
			}
			used := a.Used()
			err := s.Reserve(s.Tokens() + 200)
			if err == nil {
				break
			}
			failed++
			if a.Used() != used {
				t.Fatalf("geometry %d, room for %d bytes: %d bytes are in use after %v", i, room, a.Used()-used, err)
			}
		}
		if failed == 0 {
			t.Errorf("geometry %d: no reservation failed", i)
		}
	}
}
