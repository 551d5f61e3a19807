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
		"squeezed:clusters=0.4,sparsity=0.7,tail=3,obs=4,segment=64"} {
		t.Run(spec, func(t *testing.T) {
			rapid.Check(t, func(r *rapid.T) {
				g := kvcache.Geometry{Layers: 2, KVHeads: 2, Layout: tensor.KVLayout{Type: tensor.F32, KDim: 16, VDim: 8}}
				prompt, ring, decoded := rapid.IntRange(1, 100).Draw(r, "prompt"), rapid.IntRange(1, 90).Draw(r, "ring"),
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
