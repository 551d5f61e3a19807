package kvcache_test

import (
	"cmp"
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

// keysOfRank returns the keys of a head: sums of a few directions and a mean. A value has the position.
func keysOfRank(rank, head, pos, d int) []float32 {
	weights, key := rand.New(rand.NewPCG(uint64(pos), uint64(head))), make([]float32, d)
	for i := range rank + 1 {
		w := weights.Float32()*2 - 1
		if i == rank {
			w = 1
		}
		direction := rand.New(rand.NewPCG(uint64(i), uint64(100+head)))
		for e := range key {
			key[e] += w * (direction.Float32()*2 - 1)
		}
	}
	return key
}

// read returns the positions that a view shows, by their values.
func read(l tensor.KVLayout, blocks [][]byte, n int, mask []uint64) (positions []int) {
	k, v := make([]float32, l.KDim), make([]float32, l.VDim)
	for slot := range n {
		if mask == nil || mask[slot/64]>>(slot%64)&1 != 0 {
			l.Get(blocks[slot/tensor.BlockSlots], slot%tensor.BlockSlots, k, v)
			positions = append(positions, int(v[0]))
		}
	}
	return positions
}

// TestComponentsChooseAsKeys checks that Loki and InfiniGen choose the same slots as exact scores in
// float64, if all keys are in the subspace of the index, after any history of steps.
func TestComponentsChooseAsKeys(t *testing.T) {
	const d, heads, group, scale = 16, 2, 3, 0.25
	g := kvcache.Geometry{Layers: 1, KVHeads: heads, Group: group, Layout: tensor.KVLayout{Type: tensor.F32, KDim: d, VDim: 8}}
	write := func(s *kvcache.Store, from, to int) {
		for head := range heads {
			for pos := from; pos < to; pos++ {
				s.Write(0, head, pos, keysOfRank(6, head, pos, d), []float32{float32(pos), 0, 0, 0, 0, 0, 0, 0})
			}
		}
	}
	for _, name := range []string{"loki", "infinigen"} {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(r *rapid.T) {
				budget, alpha, most := rapid.IntRange(2, 150).Draw(r, "budget"), rapid.IntRange(1, 3000).Draw(r, "alpha"),
					rapid.IntRange(1, 1000).Draw(r, "most")
				spec := fmt.Sprintf("loki:budget=%d,dims=0.5,calib=64", budget)
				if name == "infinigen" {
					spec = fmt.Sprintf("infinigen:alpha=%v,most=%v,dims=0.5,calib=64", float64(alpha)/1000, float64(most)/1000)
				}
				p := parsed(r, spec)
				a := memory.NewArena(1 << 30)
				defer a.Close()
				prompt := kvcache.NewPrefill(a, g, tensor.Span{Lo: 0, Hi: heads})
				n := rapid.IntRange(1, 300).Draw(r, "prompt")
				if err := prompt.Reserve(n); err != nil {
					r.Fatal(err)
				}
				write(prompt, 0, n)
				prompt.Commit(n)
				s, _, err := kvcachetest.HandOver(p, []*kvcache.Store{prompt}, 0)
				if err != nil {
					r.Fatal(err)
				}
				defer s.Release()
				for range rapid.IntRange(1, 6).Draw(r, "steps") {
					n, from := rapid.IntRange(1, 40).Draw(r, "tokens"), s.Tokens()
					if err := s.Reserve(from + n); err != nil {
						r.Fatal(err)
					}
					write(s, from, from+n)
					s.Commit(rapid.IntRange(0, n).Draw(r, "accepted"))
				}
				n = s.Tokens()
				q := make([]float32, group*d)
				for i := range q {
					q[i] = rapid.Float32Range(-2, 2).Draw(r, "q") + float32(i)/1000
				}
				blocks, slots, mask := s.View(0, 1, n-1, q, tensor.Score{Scale: scale}, nil, new(tensor.AttnScratch))
				got := read(g.Layout, blocks, slots, mask)
				limit := budget
				if name == "infinigen" {
					limit = 1 + n*most/1000
				}
				if n < 64 || name == "loki" && n <= budget {
					if len(got) != n {
						r.Fatalf("%d of %d tokens are read without an index", len(got), n)
					}
					return
				}
				best := make([]float64, n)
				for i := range best {
					best[i] = math.Inf(-1)
				}
				for h := range group {
					logits, top, sum := make([]float64, n), math.Inf(-1), 0.0
					for pos := range n {
						for e, x := range keysOfRank(6, 1, pos, d) {
							logits[pos] += scale * float64(x) * float64(q[h*d+e])
						}
						top = max(top, logits[pos])
					}
					for _, x := range logits {
						sum += math.Exp(x - top)
					}
					if name == "loki" {
						top += math.Log(sum)
					}
					for pos, x := range logits {
						best[pos] = max(best[pos], x-top)
					}
				}
				order := make([]int, n-1) // the newest is always read
				for i := range order {
					order[i] = i
				}
				slices.SortFunc(order, func(a, b int) int { return int(math.Copysign(1, best[b]-best[a])) })
				k := min(limit-1, n-1)
				for i, pos := range order {
					if near := best[pos] + float64(alpha)/1000; name == "infinigen" && i <= k {
						if math.Abs(near) < 1e-3 {
							return // too close to call
						}
						if near < 0 {
							k = min(k, i)
						}
					}
				}
				if k > 0 && k < len(order) && best[order[k-1]]-best[order[k]] < 1e-3 {
					return
				}
				want := append(slices.Clone(order[:max(k, 0)]), n-1)
				if name == "infinigen" && limit == 1 && k == 0 { // one token besides the newest at least
					return
				}
				slices.Sort(want)
				if !slices.Equal(got, want) {
					r.Fatalf("%s: %v of %d are read, exact scores choose %v", spec, got, n, want)
				}
			})
		})
	}
}

// TestResnapEqualsNaive compares the tokens that resnap keeps with a plain form in float64, which has sets
// of positions and no slots.
func TestResnapEqualsNaive(t *testing.T) {
	const d, group, scale = 16, 2, 0.25
	g := kvcache.Geometry{Layers: 1, KVHeads: 1, Group: group, Layout: tensor.KVLayout{Type: tensor.F32, KDim: d, VDim: 8}}
	rapid.Check(t, func(r *rapid.T) {
		topk, every, obs, pool := rapid.IntRange(0, 40).Draw(r, "topk"), rapid.IntRange(1, 30).Draw(r, "every"),
			rapid.IntRange(1, 12).Draw(r, "obs"), 1+2*rapid.IntRange(0, 3).Draw(r, "pool")
		p, size := parsed(r, fmt.Sprintf("resnap:topk=%d,every=%d,obs=%d,pool=%d", topk, every, obs, pool)), topk+every+obs
		a := memory.NewArena(1 << 30)
		defer a.Close()
		n := rapid.IntRange(1, 150).Draw(r, "prompt")
		prompt := prompted(r, a, g, n)
		votes := map[int]float64{}
		for pos, v := range kvcachetest.Statistics(prompt, 0, 0).WindowVotes(p.Needs) {
			votes[pos] = float64(v)
		}
		keys := map[int][]float32{}
		for pos := range n + 120 {
			keys[pos], _ = kvcachetest.Noise(g, 0, 0, pos)
		}
		kept := []int{}
		for pos := range n {
			kept = append(kept, pos)
		}
		var leaving []int // the last one leaves first
		close := false
		cut := func() {
			candidates := kept[:len(kept)-obs]
			of := map[int]float64{}
			for i := range candidates {
				for j := max(0, i-pool/2); j <= min(len(candidates)-1, i+pool/2); j++ {
					of[candidates[i]] += votes[candidates[j]]
				}
			}
			leaving = slices.Clone(candidates)
			slices.SortStableFunc(leaving, func(a, b int) int {
				if x := math.Abs(of[a] - of[b]); x > 0 && x < 1e-5 {
					close = true
				}
				return cmp.Compare(of[b], of[a])
			})
			leaving = leaving[min(topk, len(leaving)):]
			clear(votes)
		}
		if n >= size {
			cut()
			for len(kept) > size {
				last := leaving[len(leaving)-1]
				leaving = leaving[:len(leaving)-1]
				kept = slices.DeleteFunc(kept, func(pos int) bool { return pos == last })
			}
		}
		clear(votes)
		s, _, err := kvcachetest.HandOver(p, []*kvcache.Store{prompt}, 0)
		if err != nil {
			r.Fatal(err)
		}
		defer s.Release()
		peak := s.Bytes()
		for range rapid.IntRange(1, 100).Draw(r, "generated") {
			if close {
				return // too close to call
			}
			pos := s.Tokens()
			if err := s.Reserve(pos + 1); err != nil {
				r.Fatal(err)
			}
			kvcachetest.WriteNoise(s, pos, pos+1)
			q := make([]float32, group*d)
			for i := range q {
				q[i] = float32((pos*31+i*17)%23)/4 - 3
			}
			s.Weigh(0, 0, q, tensor.Score{Scale: scale}, nil, new(tensor.AttnScratch))
			s.Commit(1)

			if len(kept) == size {
				last := leaving[len(leaving)-1]
				leaving = leaving[:len(leaving)-1]
				kept = slices.DeleteFunc(kept, func(pos int) bool { return pos == last })
			}
			kept = append(kept, pos)
			if left := size - len(kept) + len(leaving); left < obs {
				for h := range group {
					weights, sum := map[int]float64{}, 0.0
					for _, at := range kept {
						x := 0.0
						for e, k := range keys[at] {
							x += scale * float64(k) * float64(q[h*d+e])
						}
						weights[at] = math.Exp(x)
						sum += weights[at]
					}
					for _, at := range kept {
						if !slices.Contains(leaving, at) {
							votes[at] += weights[at] / sum
						}
					}
				}
			}
			if len(kept) == size && len(leaving) == 0 {
				cut()
			}
			var got []int
			for slot := range s.Len(0, 0) {
				got = append(got, s.Position(0, 0, slot))
			}
			slices.Sort(got)
			if !slices.Equal(got, kept) {
				r.Fatalf("topk %d, every %d, obs %d, pool %d, prompt %d, token %d: %v are kept, the plain form keeps %v",
					topk, every, obs, pool, n, pos, got, kept)
			}
			if len(got) > size || n >= size && s.Bytes() > peak+int64(g.Layout.BlockBytes()) {
				r.Fatalf("%d slots and %d bytes, of %d and %d", len(got), s.Bytes(), size, peak)
			}
		}
	})
}
