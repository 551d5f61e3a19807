package grammar

import (
	"errors"
	"runtime"
	"strings"
	"testing"
)

// A grammar whose states are long lists ends at a limit of memory, not only of their number.
func TestMemoryOfStates(t *testing.T) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	g, err := New(words(t), Spec{Kind: KindRegex, Text: strings.Repeat("a?", 20000) + strings.Repeat("a", 10000)})
	if err == nil {
		_, err = g.Start().Mask()
	}
	if err != nil && !errors.Is(err, ErrTooComplex) {
		t.Fatal(err)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 450<<20 {
		t.Errorf("the grammar holds %d MiB", grown>>20)
	}
	runtime.KeepAlive(g)
}

// The engine compiles a grammar again when the store of its expressions is at half of its memory, so that later requests
// do not get 'too complex' for states that earlier ones have left.
func TestFullStoreIsCompiledAgain(t *testing.T) {
	e := NewEngine(words(t))
	s := Spec{Kind: KindRegex, Text: strings.Repeat("a?", 6000) + strings.Repeat("a", 3000)}
	first, err := e.Compile(s)
	if err == nil {
		_, err = first.Start().Mask()
	}
	if err != nil {
		t.Fatal(err)
	}
	if held := first.m.Held(); held < 100<<20 {
		t.Fatalf("the expressions hold %d MiB only", held>>20)
	}
	if again, err := e.Compile(s); err != nil || again == first {
		t.Errorf("the next request gets the full grammar: %v", err)
	}
}
