package caches

import (
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/kvcache/rowblock"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Blocks that several sockets take at once do not replace each other, as long as they are few and small.
func TestLentBodies(t *testing.T) {
	var l lent
	block := func(layer int) rowblock.Block {
		return rowblock.Block{Layers: tensor.Span{Lo: layer, Hi: layer + 1}}
	}
	for i := range lentBodies + 1 {
		l.add(lentBody{uint64(i), block(i), make([]byte, 1+i)})
	}
	for i := range lentBodies + 1 {
		if got := len(l.find(uint64(i), block(i))); got != (1+i)*min(i, 1) { // the oldest was dropped
			t.Errorf("block %d has %d bytes", i, got)
		}
	}
	if l.find(2, block(1)) != nil {
		t.Error("a block of another sequence was found")
	}
	l.drop(2, block(2))
	l.remove(3)
	if l.find(2, block(2)) != nil || l.find(3, block(3)) != nil || len(l) != 2 {
		t.Errorf("%d bodies stay, want 2", len(l))
	}
}
