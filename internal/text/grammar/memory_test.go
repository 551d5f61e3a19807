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
