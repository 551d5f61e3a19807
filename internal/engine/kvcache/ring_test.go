package kvcache_test

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvcachetest"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// TestRingAfterPrompt checks that a cache with a ring has the prompt tokens that the policy keeps, and
// the newest tokens after the prompt, each with its own row. Without a ring all tokens stay.
func TestRingAfterPrompt(t *testing.T) {
	for _, spec := range []string{"snapkv:topk=20,obs=4,pool=3", "knorm:sink=2,recent=9,topk=15,layers=pyramid,beta=4",
		"squeezed:clusters=0.4,sparsity=0.7,tail=3,obs=4,segment=64", "quest:page=16,budget=32,skip=1",
		"shadowkv:chunk=2,budget=8,outliers=1,local=1", "loki:budget=20,calib=16", "infinigen:calib=16"} {
		t.Run(spec, func(t *testing.T) {
			rapid.Check(t, func(r *rapid.T) {
				g := kvcache.Geometry{Layers: 2, KVHeads: 2, Layout: tensor.KVLayout{Type: tensor.F32, KDim: 16, VDim: 8}}
				prompt, ring, decoded := rapid.IntRange(1, 100).Draw(r, "prompt"), rapid.IntRange(2, 90).Draw(r, "ring"),
					rapid.IntRange(0, 200).Draw(r, "decoded")
				a := memory.NewArena(1 << 30)
				defer a.Close()
				hold := func(spec string) *kvcache.Store {
					s, _, err := kvcachetest.HandOver(parsed(r, spec), []*kvcache.Store{prompted(r, a, g, prompt)}, 0)
					if err != nil {
						r.Fatal(err)
					}
					for s.Tokens() < prompt+decoded {
						n := min(rapid.IntRange(1, 5).Draw(r, "tokens of a step"), prompt+decoded-s.Tokens())
						if err := s.Reserve(s.Tokens() + n); err != nil {
							r.Fatal(err)
						}
						kvcachetest.WriteNoise(s, s.Tokens(), s.Tokens()+n)
						s.Commit(n)
					}
					return s
				}
				all, some := hold(spec), hold(fmt.Sprintf("%s,ring=%d", spec, ring))
				for layer := range g.Layers {
					for head := range g.KVHeads {
						rows := func(s *kvcache.Store, from int) (out []string) {
							k, v := make([]float32, 16), make([]float32, 8)
							for slot := range s.Len(layer, head) {
								if pos := s.Position(layer, head, slot); pos < prompt || pos >= from {
									g.Layout.Get(s.Blocks(layer, head)[slot/tensor.BlockSlots], slot%tensor.BlockSlots, k, v)
									out = append(out, fmt.Sprint(pos, k, v))
								}
							}
							slices.Sort(out)
							return out
						}
						if got, want := rows(some, 0), rows(all, prompt+decoded-ring); !slices.Equal(got, want) {
							r.Fatalf("%d tokens after a prompt of %d, ring %d: %d rows, want %d", decoded, prompt, ring, len(got), len(want))
						}
					}
				}
			})
		})
	}
}

// TestRingIsReadWithTheSelection checks after any history of steps that a query reads what the policy selects from
// a cache of the prompt alone, and the newest tokens after the prompt. While a cache without the ring is read
// whole and the ring is not full, attention has the same bits.
func TestRingIsReadWithTheSelection(t *testing.T) {
	const d, heads, group = 16, 2, 3
	score := tensor.Score{Scale: 0.25}
	g := kvcache.Geometry{Layers: 2, KVHeads: heads, Group: group, Layout: tensor.KVLayout{Type: tensor.F32, KDim: d, VDim: 8}}
	write := func(s *kvcache.Store, from, to int) {
		for i := range g.Layers * heads {
			for pos := from; pos < to; pos++ {
				s.Write(i/heads, i%heads, pos, keyOf(i%heads, pos, d), []float32{float32(pos), 0, 0, 0, 0, 0, 0, 0})
			}
		}
	}
	for _, c := range []struct {
		spec  string
		least int // tokens of the smallest ring
		same  int // tokens of the longest cache that is read whole without the ring
	}{
		{"quest:page=16,budget=96,skip=1", 1, 96},
		{"quest:page=32,budget=64", 1, 64},
		{"shadowkv:chunk=8,budget=40,outliers=3,local=2", 16, 80},
		{"shadowkv:chunk=16,budget=32,outliers=0,local=1,int8=1,skip=1", 16, 48},
		{"shadowkv:chunk=4,budget=24,outliers=4,local=3,keys=lowrank,rank=16", 12, 52},
		{"loki:budget=40,dims=0.5,calib=32", 1, 40},
		{"infinigen:alpha=2,most=0.3,dims=0.5,calib=64", 1, 63},
	} {
		t.Run(c.spec, func(t *testing.T) {
			var selected, same, full int
			rapid.Check(t, func(r *rapid.T) {
				n, ring := rapid.IntRange(1, 400).Draw(r, "prompt"), rapid.IntRange(c.least, 100).Draw(r, "ring")
				var stores [3]*kvcache.Store // with a ring, of the prompt alone, without a ring
				for i, spec := range []string{fmt.Sprintf("%s,ring=%d", c.spec, ring), c.spec, c.spec} {
					a := memory.NewArena(1 << 30)
					defer a.Close()
					prompt := kvcache.NewPrefill(a, g, tensor.Span{Lo: 0, Hi: heads})
					if err := prompt.Reserve(n); err != nil {
						r.Fatal(err)
					}
					write(prompt, 0, n)
					prompt.Commit(n)
					var err error
					if stores[i], _, err = kvcachetest.HandOver(parsed(r, spec), []*kvcache.Store{prompt}, 0); err != nil {
						r.Fatal(err)
					}
				}
				for range rapid.IntRange(0, 6).Draw(r, "steps") {
					tokens, from := rapid.IntRange(1, 60).Draw(r, "tokens"), stores[0].Tokens()
					accepted := rapid.IntRange(0, tokens).Draw(r, "accepted")
					for _, s := range []*kvcache.Store{stores[0], stores[2]} {
						if err := s.Reserve(from + tokens); err != nil {
							r.Fatal(err)
						}
						write(s, from, from+tokens)
						s.Commit(accepted)
					}
				}
				q := make([]float32, group*d)
				for i := range q {
					q[i] = rapid.Float32Range(-2, 2).Draw(r, "q") + float32(i)/1000
				}
				tokens := stores[0].Tokens()
				for i := range g.Layers * heads {
					view := func(s *kvcache.Store) ([]int, []float32) {
						scratch, out := new(tensor.AttnScratch), make([]float32, group*8)
						blocks, slots, mask := s.View(i/heads, i%heads, s.Tokens()-1, q, score, nil, scratch)
						positions := read(g.Layout, blocks, slots, mask)
						tensor.Attend(out, q, group, score, g.Layout, blocks, slots, mask, scratch)
						return positions, out
					}
					got, attended := view(stores[0])
					want, _ := view(stores[1])
					if len(want) < n {
						selected++
					}
					for pos := max(n, tokens-ring); pos < tokens; pos++ {
						want = append(want, pos)
					}
					if tokens > n+ring {
						full++
					}
					slices.Sort(got)
					if !slices.Equal(got, want) {
						r.Fatalf("%d tokens after a prompt of %d, ring %d: %v are read, want %v", tokens-n, n, ring, got, want)
					}
					if _, without := view(stores[2]); tokens <= min(c.same, n+ring) {
						same++
						if !slices.Equal(attended, without) {
							r.Fatalf("%d tokens after a prompt of %d, ring %d: %v, without the ring %v", tokens-n, n, ring, attended, without)
						}
					}
				}
			})
			if selected == 0 || same == 0 || full == 0 {
				t.Errorf("%d views selected, %d equal those without a ring, %d had a full ring: want some of each", selected, same, full)
			}
		})
	}
}
