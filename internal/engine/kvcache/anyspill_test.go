package kvcache

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// TestSpilledIsInMemory for policies of any sizes, also without the memory for the pages that stay.
func TestAnyPolicySpills(t *testing.T) {
	spills := 0
	check := func(r *rapid.T) {
		p := drawPolicy(r, "streaming", "snapstream", "sage", "quest", "shadowkv", "squeezed")
		g := rapid.SampledFrom([]Geometry{
			{Layers: 3, KVHeads: 2, Group: 2, Layout: tensor.KVLayout{Type: tensor.F32, KDim: 16, VDim: 32}, Windows: []int{0, 40, 0}},
			{Layers: 2, KVHeads: 2, Group: 2, Layout: tensor.KVLayout{Type: tensor.BF16, KDim: 16, VDim: 32}},
			{Layers: 2, KVHeads: 1, Group: 2, Layout: tensor.KVLayout{Type: tensor.Int8, KDim: 32, VDim: 64}},
		}).Draw(r, "shape")
		prompt := rapid.IntRange(100, 900).Draw(r, "prompt")
		if p = p.For(prompt); g.Fits(p) != nil || pageable(g, prompt, prompt+100, p) == 0 {
			return
		}
		if file, _ := compareSpilled(r, p, g, prompt, rapid.IntRange(0, 5).Draw(r, "tight") == 0); file != nil {
			spills++
		}
	}
	for range 10 { // a round may draw no sequence that spills
		if rapid.Check(t, check); spills > 0 {
			return
		}
	}
	t.Error("no sequence spilled")
}
