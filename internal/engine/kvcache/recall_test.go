package kvcache_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvcachetest"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// recallCase is a policy with a ring, and its parameters of recall.
type recallCase struct {
	base                 string
	always               int // tokens of a long prompt that the policy keeps without the ring
	recent, recall, page int
}

func (c recallCase) spec() string {
	return fmt.Sprintf("%s,recent=%d,recall=%d,page=%d", c.base, c.recent, c.recall, c.page)
}

// keyOf returns the key of a position. Scores of different keys do not tie.
func keyOf(head, pos, d int) []float32 {
	r, key := rand.New(rand.NewPCG(uint64(pos), uint64(head))), make([]float32, d)
	for i := range key {
		key[i] = r.Float32()*2 - 1
	}
	return key
}

// recalled returns the positions of a head that recall reads, computed in float64 from the definition: the
// first pages, the pages of the newest tokens, and the pages with the highest bounds of the others.
func recalled(c recallCase, s *kvcache.Store, head int, q []float32, group int) (positions []int) {
	d, n := s.Layout().KDim, s.Tokens()
	first, pages := (c.always+c.page-1)/c.page, (n+c.page-1)/c.page
	all := first + (c.recall+c.page-1)/c.page + (c.recent+c.page-2)/c.page + 1
	var fixed, others []int
	bounds := make([]float64, pages)
	for page := range pages {
		last := min(n, (page+1)*c.page)
		if page < first || last > n-c.recent || pages <= all {
			fixed = append(fixed, page)
			continue
		}
		others, bounds[page] = append(others, page), math.Inf(-1)
		for r := range group {
			sum := 0.0
			for e := range d {
				x, best := float64(q[r*d+e]), math.Inf(-1)
				for slot := page * c.page; slot < last; slot++ {
					best = max(best, x*float64(keyOf(head, s.Position(0, head, slot), d)[e]))
				}
				sum += best
			}
			bounds[page] = max(bounds[page], sum)
		}
	}
	slices.SortStableFunc(others, func(a, b int) int {
		if bounds[a] > bounds[b] {
			return -1
		}
		return 1
	})
	chosen := append(fixed, others[:min(len(others), max(0, all-len(fixed)))]...)
	slices.Sort(chosen)
	for _, page := range chosen {
		for slot := page * c.page; slot < min(n, (page+1)*c.page); slot++ {
			positions = append(positions, s.Position(0, head, slot))
		}
	}
	return positions
}

// TestRecallEqualsNaive checks after any history of steps that a query reads the slots of the definition,
// among them all slots that the policy keeps without recall.
func TestRecallEqualsNaive(t *testing.T) {
	const d, heads, group = 16, 2, 3
	g := kvcache.Geometry{Layers: 1, KVHeads: heads, Group: group, Layout: tensor.KVLayout{Type: tensor.F32, KDim: d, VDim: 8}}
	write := func(s *kvcache.Store, from, to int) {
		for head := range heads {
			for pos := from; pos < to; pos++ {
				s.Write(0, head, pos, keyOf(head, pos, d), []float32{float32(pos), 0, 0, 0, 0, 0, 0, 0})
			}
		}
	}
	var recalls, reordered int
	for _, c := range []recallCase{
		{"snapstream:sink=4,topk=40,obs=8,pool=5", 44, 30, 64, 16},
		{"snapstream:sink=0,topk=16,obs=8,pool=3,votes=candidates", 16, 1, 1, 16},
		{"snapstream:sink=3,topk=60,obs=4,pool=1,votes=prefix", 63, 70, 33, 32},
		{"sage:sink=0,topk=0", 0, 17, 40, 16},
		{"sage:sink=2,topk=30", 32, 5, 70, 64},
		{"streaming:sink=4", 4, 20, 33, 16},
		{"streaming:sink=0", 0, 2, 16, 16},
	} {
		t.Run(c.spec(), func(t *testing.T) {
			rapid.Check(t, func(r *rapid.T) {
				base, n := fmt.Sprintf("%s,recent=%d", c.base, c.recent), rapid.IntRange(1, 400).Draw(r, "prompt")
				var stores [2]*kvcache.Store
				for i, spec := range []string{c.spec(), base} {
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
				for range rapid.IntRange(1, 6).Draw(r, "steps") {
					tokens, from := rapid.IntRange(1, 40).Draw(r, "tokens"), stores[0].Tokens()
					accepted := rapid.IntRange(0, tokens).Draw(r, "accepted")
					for _, s := range stores {
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
				s := stores[0]
				blocks, slots, mask := s.View(0, 1, s.Tokens()-1, q, tensor.Score{Scale: 0.25}, nil, new(tensor.AttnScratch))
				got := read(g.Layout, blocks, slots, mask)
				if most := s.Policy().Selector.Reads(s.Tokens()); len(got) > most {
					r.Fatalf("%d of %d tokens are read, the store's limit is %d", len(got), s.Tokens(), most)
				}
				if want := recalled(c, s, 1, q, group); !slices.Equal(got, want) {
					r.Fatalf("%d tokens, %d of the prompt: %v, want %v", s.Tokens(), n, got, want)
				}
				if _, err := s.Fork(); err == nil {
					r.Fatal("a cache was forked although its index grows")
				}
				if len(got) < s.Tokens() {
					recalls++
				}
				if !slices.IsSorted(got) {
					reordered++
				}
				if n < c.always+c.recent { // the first pages have the first tokens instead
					return
				}
				for slot := range stores[1].Len(0, 1) {
					if pos := stores[1].Position(0, 1, slot); !slices.Contains(got, pos) {
						r.Fatalf("%d tokens, %d of the prompt: position %d is kept by %s and not read", s.Tokens(), n, pos, base)
					}
				}
			})
		})
	}
	if recalls == 0 || reordered == 0 {
		t.Errorf("%d views skipped tokens, %d had another order than the text, want some of both", recalls, reordered)
	}
}
