package squeezed

import (
	"bytes"
	"slices"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvcachetest"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/results"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// indexed prepares and hands over a prompt of noise with stored results, and returns its owner's index.
func indexed(t *testing.T, p *kvcache.Policy, g kvcache.Geometry, tokens int, stored *results.Prompt) (index []byte) {
	t.Helper()
	a, heads := memory.NewArena(1<<30), tensor.Span{Lo: 0, Hi: g.KVHeads}
	defer a.Close()
	prompt := kvcache.NewPrefill(a, g, heads)
	if err := prompt.Reserve(tokens); err != nil {
		t.Fatal(err)
	}
	kvcachetest.WriteNoise(prompt, 0, tokens)
	prompt.Commit(tokens)
	o, err := kvcache.NewObservation(a, g, heads, p.Needs, tokens)
	if err != nil {
		t.Fatal(err)
	}
	o.Results = stored
	for i := range kvcache.IndexWorkOf(g, tokens, p).Before {
		o.Prepare(prompt, p, i, inTurn)
	}
	own := kvcache.NewStore(a, g, p)
	own.Score, own.Results = tensor.Score{Scale: 0.25}, stored
	if err := own.Open(tokens, tokens, tensor.Span{}); err != nil {
		t.Fatal(err)
	}
	for layer := range g.Layers {
		for head := range g.KVHeads {
			s := o.Statistics(prompt, layer, head, own.Score)
			copy(s.Queries, kvcachetest.Observed(tokens, g))
			if err := own.Keep(prompt, layer, head, p.Keep(s)); err != nil {
				t.Fatal(err)
			}
			if err := own.KeepQueries(s); err != nil {
				t.Fatal(err)
			}
		}
	}
	o.Release()
	prompt.Release()
	if err := own.Seal(); err != nil {
		t.Fatal(err)
	}
	for layer := range g.Layers {
		for head := range g.KVHeads {
			for _, b := range own.IndexBlocks(layer, head) {
				index = append(index, b...)
			}
		}
	}
	own.Release()
	return index
}

// TestStoredResults: a prompt whose clusters and thresholds are stored has the same index, and nothing is
// computed. A result that is damaged or of another prompt is computed again.
func TestStoredResults(t *testing.T) {
	g := kvcache.Geometry{Layers: 2, KVHeads: 3, Group: 2, Layout: tensor.KVLayout{Type: tensor.BF16, KDim: 16, VDim: 8}}
	for _, p := range []*kvcache.Policy{Method.Of(100, 1, 600, 4, 8, 1000), Method.Of(100, 2, 600, 4, 8, 64)} {
		t.Run(p.Spec(), func(t *testing.T) {
			const tokens, all = 333, 2*3 + 1
			want := indexed(t, p, g, tokens, nil)
			m := &kvcachetest.Results{}
			stored := &results.Prompt{Key: results.Key{1}, Store: m}
			try := func(what string, stored *results.Prompt, recalled, computed int) {
				t.Helper()
				m.Recalled, m.Computed = 0, 0
				if got := indexed(t, p, g, tokens, stored); !bytes.Equal(got, want) {
					t.Errorf("%s: another index", what)
				}
				if m.Recalled != recalled || m.Computed != computed {
					t.Errorf("%s: %d results were found and %d computed, want %d and %d", what, m.Recalled, m.Computed, recalled, computed)
				}
			}
			try("cold", stored, 0, all)
			try("stored", stored, all, 0)
			try("another prompt", &results.Prompt{Key: results.Key{2}, Store: m}, 0, all)
			for k, v := range m.Values { // each label is then that of a cluster too many, and each threshold not a number
				m.Values[k] = bytes.Repeat([]byte{0xff}, len(v))
			}
			try("damaged", stored, all, all)
		})
	}
}

// FuzzLabels: labels from a file are refused, or a prompt can be arranged by them.
func FuzzLabels(f *testing.F) {
	valid := encodeLabels(nil, []int32{-1, 0, 0, -2, 3, 0, 3, 0, 0, 3, 0, 0})
	f.Add(valid, true)
	f.Add(encodeLabels(nil, []int32{0, 1, 0, 1, 0, 0, 0, 1, 1, 1, 0, 1}), false)
	f.Add(encodeLabels(nil, []int32{-9, 0, 0, 0}), true)
	f.Add(encodeLabels(nil, []int32{1 << 30, 2}), false)
	f.Add([]byte{1, 2, 3}, false)
	f.Fuzz(func(t *testing.T, src []byte, two bool) {
		c := clusters{share: 250, segment: 64}
		if two {
			c.coarse = 100
		}
		labels := make([]int32, len(src)/4)
		if len(labels) == 0 || len(labels) > 1000 || !c.decodeLabels(labels, src) {
			return
		}
		if got := encodeLabels(nil, labels); !bytes.Equal(got, src) {
			t.Fatalf("%v differs from the read index", labels)
		}
		members := membersOf(labels)
		if len(members) > c.most(0, len(labels)) {
			t.Fatalf("%d clusters of %d tokens", len(members), len(labels))
		}
		var positions []int32
		for _, m := range members {
			if !slices.IsSorted(m) {
				t.Fatalf("members %v", m)
			}
			positions = append(positions, m...)
		}
		if _, err := runsOf(positions, len(labels)); err != nil {
			t.Fatal(err)
		}
		if two {
			for _, group := range c.grouped(&kvcache.Statistics{Labels: labels}, members) {
				if group < 0 || int(group) >= c.groups(len(members)) {
					t.Fatalf("coarse cluster %d of %d clusters", group, len(members))
				}
			}
		}
	})
}
