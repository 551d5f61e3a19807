package kvcache

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
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
		var arenas [2]*memory.Arena
		var stores [2]*Store
		for i := range stores {
			arenas[i] = memory.NewArena(1 << 30)
			defer arenas[i].Close()
			part := NewPrefill(arenas[i], g, tensor.Span{Lo: 0, Hi: g.KVHeads})
			if err := part.Reserve(prompt); err != nil {
				r.Fatal(err)
			}
			writeNoise(part, 0, prompt)
			part.Commit(prompt)
			var err error
			if stores[i], _, err = handOver(p, []*Store{part}, 0); err != nil {
				r.Fatal(p.Spec(), err)
			}
		}
		var file *pagesInMemory
		blocks, when := 0, rapid.IntRange(0, 3).Draw(r, "when")
		q := make([]float32, g.Group*g.Layout.KDim)
		for k := range rapid.IntRange(1, 6).Draw(r, "steps") {
			if k >= when && file == nil && Spillable(g, prompt, stores[1].Tokens(), p) > 0 {
				spills++
				used := arenas[1].Used()
				if rapid.IntRange(0, 5).Draw(r, "tight") == 0 {
					arenas[1].SetBudget(0)
				}
				file = spill(r, stores[1])
				arenas[1].SetBudget(1 << 30)
				if blocks = stores[1].Spilled(); arenas[1].Used() >= used {
					r.Fatalf("%s: %d bytes after %d", p.Spec(), arenas[1].Used(), used)
				}
			}
			if stores[1].Lost() != nil {
				break
			}
			n, from := rapid.IntRange(1, 70).Draw(r, "tokens"), stores[0].Tokens()
			accepted := rapid.IntRange(0, n).Draw(r, "accepted")
			for i := range q {
				q[i] = rapid.Float32Range(-1, 1).Draw(r, "q") * 4
			}
			for _, s := range stores {
				if err := s.Reserve(from + n); err != nil {
					r.Fatal(err)
				}
				writeNoise(s, from, from+n)
			}
			if got, want := arenas[1].Used(), SpilledBytes(g, prompt, from+n, n, blocks, p); got != want || stores[1].Bytes() != want {
				r.Fatalf("%s: %d bytes in use, %d by the store, SpilledBytes %d", p.Spec(), got, stores[1].Bytes(), want)
			}
			for layer := range g.Layers {
				for head := range g.KVHeads {
					for i := range n {
						together, _ := stores[0].BatchedDecode(layer, from, n)
						if !together && i < n-1 {
							continue
						}
						if got, want := attended(stores[1], layer, head, from+i, q), attended(stores[0], layer, head, from+i, q); !slices.Equal(got, want) {
							r.Fatalf("%s: step %d, layer %d, head %d, position %d: %x, in memory %x", p.Spec(), k, layer, head, from+i, got, want)
						}
					}
				}
			}
			for _, s := range stores {
				s.Commit(accepted)
			}
		}
		stores[1].Release()
		if used := arenas[1].Used(); used != 0 || file != nil && file.closed != 1 {
			r.Fatalf("%s: %d bytes are left, and a file closed %d times", p.Spec(), used, file.closed)
		}
	}
	for range 10 { // a round may draw no sequence that spills
		if rapid.Check(t, check); spills > 0 {
			return
		}
	}
	t.Error("no sequence spilled")
}
