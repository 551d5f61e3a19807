package kvcache_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/budget"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvcachetest"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// parsed is the policy of a spec that is right.
func parsed(t rapid.TB, spec string) *kvcache.Policy {
	p, err := kvpolicy.Parse(spec)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// prompted is a prompt of n tokens with random rows.
func prompted(t rapid.TB, a *memory.Arena, g kvcache.Geometry, n int) *kvcache.Store {
	s := kvcache.NewPrefill(a, g, tensor.Span{Lo: 0, Hi: g.KVHeads})
	if err := s.Reserve(n); err != nil {
		t.Fatal(err)
	}
	kvcachetest.WriteNoise(s, 0, n)
	s.Commit(n)
	return s
}

// TestPyramidIsSnapKVPerLayer checks that each layer of a pyramid keeps the tokens of SnapKV with the
// layer's budget, and that layers with a window do not count.
func TestPyramidIsSnapKVPerLayer(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		g := kvcache.Geometry{Layers: 5, KVHeads: 2, Group: 2, Layout: tensor.KVLayout{Type: tensor.F32, KDim: 16, VDim: 8}}
		places, layers := []int{0, 1, 2, 3, 4}, 5
		if rapid.Bool().Draw(r, "windows") {
			g.Windows, places, layers = []int{0, 40, 0, 40, 0}, []int{0, -1, 1, -1, 2}, 3
		}
		n, topk, beta := rapid.IntRange(1, 200).Draw(r, "prompt"), rapid.IntRange(0, 90).Draw(r, "topk"), rapid.IntRange(1, 30).Draw(r, "beta")
		obs := rapid.IntRange(1, 20).Draw(r, "obs")
		specs := []string{fmt.Sprintf("pyramidkv:topk=%d,obs=%d,pool=3,beta=%d", topk, obs, beta),
			fmt.Sprintf("snapkv:topk=%d,obs=%d,pool=3,votes=prefix,layers=pyramid,beta=%d", topk, obs, beta)}
		a := memory.NewArena(1 << 30)
		defer a.Close()
		s := prompted(r, a, g, n)
		total := 0
		for layer, place := range places {
			for _, spec := range specs {
				rule := g.Rule(layer, parsed(r, spec))
				if place < 0 {
					if rule.Name() != "window" {
						r.Fatalf("layer %d has the rule %s", layer, rule.Name())
					}
					continue
				}
				seen := kvcachetest.Statistics(s, layer, 1)
				own := budget.Pyramid(topk, beta, max(0, n-obs), place, layers)
				got, want := rule.Keep(seen).Positions,
					parsed(r, fmt.Sprintf("snapkv:topk=%d,obs=%d,pool=3,votes=prefix", own, obs)).Keep(seen).Positions
				if !slices.Equal(got, want) || rule.Slots(n, n+7) != len(want)+7 {
					r.Fatalf("%s, layer %d of %d tokens: %v, SnapKV %v", spec, layer, n, got, want)
				}
				total += len(got)
			}
		}
		if most := len(specs) * layers * (topk + 1 + obs); total > most {
			r.Fatalf("%d slots, equal budgets take %d", total, most)
		}
	})
}

// lagScores are the scores of LagKV (arXiv 2504.04704, equations 1 to 6) in float64: of partitions [p][lag], those
// of the last one missing.
func lagScores(rows [][]float32, sink, lag int) (scores [][]float64) {
	for p := sink; p+2*lag <= len(rows); p += lag {
		own := make([]float64, lag)
		d := len(rows[0])
		for j := range lag {
			x := make([]float64, d)
			mean := 0.0
			for c := range d {
				least, most := math.Inf(1), math.Inf(-1)
				for _, row := range rows[p+lag : p+2*lag] {
					least, most = min(least, float64(row[c])), max(most, float64(row[c]))
				}
				x[c] = (float64(rows[p+j][c]) - least) / (most - least)
				mean += x[c] / float64(d)
			}
			for _, x := range x {
				own[j] += (x - mean) * (x - mean) / float64(d-1)
			}
			own[j] = math.Exp(math.Sqrt(own[j]))
		}
		sum := 0.0
		for _, x := range own {
			sum += x
		}
		for j := range own {
			own[j] /= sum
		}
		scores = append(scores, own)
	}
	return scores
}

// TestLagKVEqualsNaive compares the tokens that LagKV keeps with the paper's form: equally many of each
// partition.
func TestLagKVEqualsNaive(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		g := kvcache.Geometry{Layers: 1, KVHeads: 2, Layout: tensor.KVLayout{Type: tensor.F32, KDim: 16, VDim: 8}}
		sink, lag, partitions := rapid.IntRange(0, 5).Draw(r, "sink"), rapid.IntRange(2, 20).Draw(r, "lag"),
			rapid.IntRange(2, 7).Draw(r, "partitions")
		rest := rapid.IntRange(0, lag-1).Draw(r, "rest")
		each := rapid.IntRange(0, lag).Draw(r, "kept of each partition")
		n := sink + partitions*lag + rest
		a := memory.NewArena(1 << 30)
		defer a.Close()
		s := prompted(r, a, g, n)
		seen := kvcachetest.Statistics(s, 0, 1)
		kept := parsed(r, fmt.Sprintf("lagkv:sink=%d,lag=%d,topk=%d", sink, lag, rest+each*(partitions-1))).Keep(seen).Positions
		var keys, values [][]float32
		for pos := range n {
			k, v := make([]float32, 16), make([]float32, 8)
			seen.Layout.Get(seen.Blocks[pos/tensor.BlockSlots], pos%tensor.BlockSlots, k, v)
			keys, values = append(keys, k), append(values, v)
		}
		want, ofValues := kvcache.Positions(nil, 0, sink), lagScores(values, sink, lag)
		for i, scores := range lagScores(keys, sink, lag) {
			order := make([]int, lag)
			for j := range scores {
				order[j], scores[j] = j, (scores[j]+ofValues[i][j])/2
			}
			slices.SortStableFunc(order, func(a, b int) int { return int(math.Copysign(1, scores[b]-scores[a])) })
			if each > 0 && each < lag && scores[order[each-1]]-scores[order[each]] < 1e-6 {
				return // too close to call
			}
			for _, j := range order[:each] {
				want = append(want, int32(sink+i*lag+j))
			}
		}
		want = kvcache.Positions(want, n-rest-lag, n)
		slices.Sort(want)
		if !slices.Equal(kept, want) {
			r.Fatalf("%v, the paper keeps %v", kept, want)
		}
	})
}

// TestAdaKVDividesALayer checks that each head of a layer keeps the tokens of SnapKV with this head's
// budget, and that budgets follow the votes. A moved cache has the same rows, and the bytes are those
// of equal budgets.
func TestAdaKVDividesALayer(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		g := kvcache.Geometry{Layers: 2, KVHeads: 3, Group: 2, Layout: tensor.KVLayout{Type: tensor.F32, KDim: 16, VDim: 8}}
		n, topk := rapid.IntRange(1, 700).Draw(r, "prompt"), rapid.IntRange(0, 260).Draw(r, "topk")
		spec := fmt.Sprintf("adakv:topk=%d,obs=8,pool=3,floor=%v", topk, rapid.SampledFrom([]float64{0, 0.2, 1}).Draw(r, "floor"))
		if rapid.Bool().Draw(r, "cache positions") {
			spec += ",positions=cache,half=1"
		}
		p := parsed(r, spec)
		a := memory.NewArena(1 << 30)
		defer a.Close()
		prompt := prompted(r, a, g, n)
		defer prompt.Release()
		curves, want := make([][][]float32, g.Layers), map[[2]int]int{}
		divided := p.Divides(g, n)
		if divided != (n-8 > topk) {
			r.Fatalf("%s divides %v for a prompt of %d", spec, divided, n)
		}
		for layer := range curves {
			for head := range g.KVHeads {
				want[[2]int{layer, head}] = topk
				if divided {
					curves[layer] = append(curves[layer], p.HeadCurve(kvcachetest.Statistics(prompt, layer, head), g.KVHeads))
				}
			}
			if divided {
				for head, blocks := range p.HeadBlocks(n, curves[layer]) {
					want[[2]int{layer, head}] = topk%64 + 64*blocks
				}
			}
		}
		copied := prompted(r, a, g, n)
		s, _, err := kvcachetest.HandOver(p, []*kvcache.Store{copied}, 0)
		if err != nil {
			r.Fatal(err)
		}
		defer s.Release()
		generate := rapid.IntRange(0, 80).Draw(r, "generated")
		for range generate {
			if err := s.Reserve(s.Tokens() + 1); err != nil {
				r.Fatal(err)
			}
			kvcachetest.WriteNoise(s, s.Tokens(), s.Tokens()+1)
			s.Commit(1)
		}
		moved := kvcache.NewStore(a, g, p)
		defer moved.Release()
		if err := moved.OpenMoved(n, s.Tokens()); err != nil {
			r.Fatal(err)
		}
		for layer := range g.Layers {
			b := s.LayerBlock(layer, s.Tokens())
			rows, err := b.Append(nil, s)
			if err == nil {
				_, err = b.Store(rows, moved)
			}
			if err != nil {
				r.Fatal(err)
			}
		}
		if err := moved.Seal(); err != nil {
			r.Fatal(err)
		}
		if got := kvcache.ResidentBytes(g, n, s.Tokens(), p); s.Bytes() != got || moved.Bytes() != got {
			r.Fatalf("%s: %d bytes, moved %d, of %d", spec, s.Bytes(), moved.Bytes(), got)
		}
		k, v := make([]float32, 16), make([]float32, 8)
		for at, own := range want {
			layer, head := at[0], at[1]
			kept := parsed(r,
				fmt.Sprintf("snapkv:topk=%d,obs=8,pool=3,votes=prefix", own)).Keep(kvcachetest.Statistics(prompt, layer, head)).Positions
			kept = kvcache.Positions(kept, n, n+generate)
			for i, of := range []*kvcache.Store{s, moved} {
				if of.Len(layer, head) != len(kept) {
					r.Fatalf("%s: layer %d, head %d, store %d: %d slots, want %d", spec, layer, head, i, of.Len(layer, head), len(kept))
				}
				for slot, pos := range kept {
					wk, wv := kvcachetest.Noise(g, layer, head, int(pos))
					g.Layout.Get(of.Blocks(layer, head)[slot/tensor.BlockSlots], slot%tensor.BlockSlots, k, v)
					if of.Position(layer, head, slot) != int(pos) || !slices.Equal(k, wk) || !slices.Equal(v, wv) {
						r.Fatalf("%s: layer %d, head %d, store %d: slot %d is not position %d", spec, layer, head, i, slot, pos)
					}
				}
			}
		}
	})
}
