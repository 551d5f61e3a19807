package kvcache_test

import (
	"math/bits"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvcachetest"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/topk"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// TestMasksAreViews checks that the masks of several tokens select the slots of one view per token.
func TestMasksAreViews(t *testing.T) {
	const group, d, first = 3, 16, 2 // first: of the step's tokens, the one that Masks begins with
	g := kvcache.Geometry{Layers: 1, KVHeads: 2, Group: group, Layout: tensor.KVLayout{Type: tensor.F32, KDim: d, VDim: 8}}
	score := tensor.Score{Scale: 0.25}
	for spec, chooses := range map[string]bool{
		"squeezed:clusters=0.2,sparsity=0.7,tail=3,obs=4":                  true,
		"squeezed:clusters=0.4,levels=2,sparsity=0.7,tail=3,obs=4,ring=90": true,
		"loki:budget=40,dims=0.5,calib=64":                                 true,
		"infinigen:alpha=1,most=0.3,dims=0.5,calib=64,ring=70":             true,
		"quest:page=16,budget=64,skip=0":                                   false,
		"full":                                                             false,
	} {
		t.Run(spec, func(t *testing.T) {
			rapid.Check(t, func(r *rapid.T) {
				prompt, n := rapid.IntRange(1, 300).Draw(r, "prompt"), rapid.IntRange(first+1, 40).Draw(r, "tokens of the step")
				a := memory.NewArena(1 << 30)
				defer a.Close()
				s, _, err := kvcachetest.HandOver(parsed(r, spec), []*kvcache.Store{prompted(r, a, g, prompt)}, 0)
				if err != nil {
					r.Fatal(err)
				}
				if err := s.Reserve(prompt + n); err != nil {
					r.Fatal(err)
				}
				kvcachetest.WriteNoise(s, prompt, prompt+n)
				const ldq = group*d + 5
				q := make([]float32, n*ldq)
				for i := range q {
					q[i] = float32(i*7919%4001)/1000 - 2
				}
				sc := new(tensor.AttnScratch)
				for _, used := range sc.Masks(n, prompt+n) {
					topk.Mark(used, 0, prompt+n)
				}
				masks := s.Masks(0, 1, prompt+first, n-first, q, ldq, score, sc)
				if !chooses && masks == nil {
					return
				}
				if len(masks) != n-first {
					r.Fatalf("%d masks of %d tokens", len(masks), n-first)
				}
				all := s.Blocks(0, 1)
				for i, mask := range masks {
					var got, want []int
					for b, word := range mask {
						for ; word != 0; word &= word - 1 {
							got = append(got, b*tensor.BlockSlots+bits.TrailingZeros64(word))
						}
					}
					blocks, slots, valid := s.View(0, 1, prompt+first+i, q[i*ldq:][:group*d], score, nil, new(tensor.AttnScratch))
					for slot := range slots {
						if b, in := slot/tensor.BlockSlots, slot%tensor.BlockSlots; valid == nil || valid[b]>>in&1 != 0 {
							at := slices.IndexFunc(all, func(block []byte) bool { return &block[0] == &blocks[b][0] })
							want = append(want, at*tensor.BlockSlots+in)
						}
					}
					if !slices.Equal(got, want) {
						r.Fatalf("token %d of %d after a prompt of %d: %v, want %v", first+i, n, prompt, got, want)
					}
				}
			})
		})
	}
}
