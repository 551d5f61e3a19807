package shadowkv

import (
	"bytes"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvcachetest"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/results"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/rowblock"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// TestStoredResults: a prompt whose factors are stored gets the same index without computing them.
// Factors of another size are computed again.
func TestStoredResults(t *testing.T) {
	g := kvcache.Geometry{Layers: 2, KVHeads: 3, Group: 2, Layout: tensor.KVLayout{Type: tensor.BF16, KDim: 16, VDim: 16}}
	p := Method.Of(8, 16, 4, 2, 0, 0, 1, 8)
	ropes := kvcache.Ropes{rotations(g.Layout.KDim), unrotated(g.Layout.KDim)}
	const tokens = 300
	index := func(stored *results.Prompt) (all []byte) {
		t.Helper()
		a := memory.NewArena(1 << 30)
		defer a.Close()
		part := kvcache.NewPrefill(a, g, tensor.Span{Lo: 0, Hi: g.KVHeads})
		if err := part.Reserve(tokens); err != nil {
			t.Fatal(err)
		}
		kvcachetest.WriteNoise(part, 0, tokens)
		part.Commit(tokens)
		s := kvcache.NewStore(a, g, p)
		s.Results = stored
		if err := s.Open(tokens, tokens, part.Heads()); err != nil {
			t.Fatal(err)
		}
		for head := range g.KVHeads {
			if err := s.Adopt(part, head); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.SealOn(func(n int, f func(i int)) {
			for i := range n {
				f(i)
			}
		}, ropes); err != nil {
			t.Fatal(err)
		}
		part.Release()
		for layer := range g.Layers {
			block := rowblock.Block{Layers: tensor.Span{Lo: layer, Hi: layer + 1}, Heads: tensor.Span{Lo: 0, Hi: g.KVHeads},
				Slots: tensor.Span{Lo: 0, Hi: tokens}, Planes: rowblock.Index}
			got, err := block.Append(nil, s)
			if err != nil || len(got) < 1000 {
				t.Fatalf("%d bytes of an index, %v", len(got), err)
			}
			all = append(all, got...)
		}
		s.Release()
		return all
	}
	want, m := index(nil), &kvcachetest.Results{}
	stored := &results.Prompt{Key: results.Key{1}, Store: m}
	for _, c := range []struct {
		what               string
		recalled, computed int
	}{{"cold", 0, g.Layers}, {"stored", g.Layers, 0}, {"cut short", 0, g.Layers}} {
		if c.what == "cut short" {
			for k, v := range m.Values {
				m.Values[k] = v[:len(v)-1]
			}
		}
		m.Recalled, m.Computed = 0, 0
		if got := index(stored); !bytes.Equal(got, want) {
			t.Errorf("%s: another index", c.what)
		}
		if m.Recalled != c.recalled || m.Computed != c.computed {
			t.Errorf("%s: %d results were found and %d computed, want %d and %d", c.what, m.Recalled, m.Computed, c.recalled, c.computed)
		}
	}
}
