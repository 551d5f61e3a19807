package kvcache

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Statistics of a prompt are the same bits in any chunks and on any cut over sockets, and so is the choice of a policy.
func TestStatisticsOnAnyCut(t *testing.T) {
	shapes := []Geometry{
		{Layers: 2, KVHeads: 2, Group: 2, Layout: tensor.KVLayout{Type: tensor.BF16, KDim: 16, VDim: 8}},
		{Layers: 2, KVHeads: 1, Group: 6, Units: 3, Layout: tensor.KVLayout{Type: tensor.BF16, KDim: 24, VDim: 16, Latent: true}},
		{Layers: 3, KVHeads: 1, Group: 4, Units: 4, Layout: tensor.KVLayout{Type: tensor.F32, KDim: 24, VDim: 16, Latent: true},
			Windows: []int{0, 20, 0}},
	}
	rapid.Check(t, func(r *rapid.T) {
		p, g := drawPolicy(r), rapid.SampledFrom(shapes).Draw(r, "shape")
		prompt := rapid.OneOf(rapid.IntRange(1, 5), rapid.IntRange(1, 200)).Draw(r, "prompt")
		if p = p.For(prompt); g.Fits(p) != nil {
			return
		}
		a := memory.NewArena(1 << 30)
		defer a.Close()
		part := NewPrefill(a, g, tensor.Span{Lo: 0, Hi: g.KVHeads})
		if err := part.Reserve(prompt); err != nil {
			r.Fatal(err)
		}
		writeNoise(part, 0, prompt)
		score := tensor.Score{Scale: 0.3}
		cut := g.Cut()
		width := g.queryHeads() * g.Layout.KDim
		query := func(layer, head, pos int) []float32 {
			q := make([]float32, width)
			for i := range q {
				q[i] = float32((pos*13+layer*5+head*3+i*7)%29)/29 - 0.5
			}
			return q
		}
		keep := func(cuts []int, chunk func() int) (kept [][]int32) {
			var all []*Observation
			for i := 1; i < len(cuts); i++ {
				span := tensor.Span{Lo: cuts[i-1], Hi: cuts[i]}
				used := a.Used()
				o, err := NewObservation(a, g, span, p.Needs, prompt)
				if err != nil {
					r.Fatal(err)
				}
				if want := StatisticsBytes(g, span.Len(), prompt, p); a.Used()-used != want {
					r.Fatalf("%d bytes, want %d", a.Used()-used, want)
				}
				all = append(all, o)
				if o == nil {
					continue
				}
				for at := 0; at < prompt; {
					n := min(chunk(), prompt-at)
					for layer := range g.Layers {
						for head := span.Lo; head < span.Hi; head++ {
							var q []float32
							for pos := at; pos < at+n; pos++ {
								q = append(q, query(layer, head, pos)...)
							}
							kv := head
							if g.Units > 0 {
								kv = 0
							}
							o.Observe(layer, head, at, n, q, width, score, part.Blocks(layer, kv), new(tensor.AttnScratch))
						}
					}
					at += n
				}
			}
			for layer := range g.Layers {
				rule := g.Rule(layer, p)
				if g.Units == 0 {
					for i, o := range all {
						for head := cuts[i]; head < cuts[i+1]; head++ {
							kept = append(kept, rule.Keep(o.Statistics(part, layer, head, score)).Positions)
						}
					}
					continue
				}
				sum := make([]float32, PartFloats(g, p, prompt))
				if g.window(layer) > 0 {
					continue
				}
				var nodes []tensor.Span
				var parts [][]float32
				for i, o := range all {
					of := tensor.Subtrees(cuts[i], cuts[i+1], cut)
					mine := make([][]float32, len(of))
					for j := range mine {
						mine[j] = make([]float32, len(sum))
					}
					if o != nil && len(sum) > 0 {
						o.Parts(layer, of, mine)
					}
					nodes, parts = append(nodes, of...), append(parts, mine...)
				}
				if len(sum) > 0 {
					tensor.CombineTree(sum, nodes, parts, cut)
				}
				kept = append(kept, rule.Keep(StatisticsOfSum(part, layer, rule, score, sum)).Positions)
			}
			for _, o := range all {
				o.Release()
			}
			return kept
		}
		part.Commit(prompt)
		cuts := []int{0, cut}
		for range rapid.IntRange(0, 3).Draw(r, "cuts") {
			cuts = append(cuts, rapid.IntRange(0, cut).Draw(r, "cut"))
		}
		slices.Sort(cuts)
		want := keep([]int{0, cut}, func() int { return prompt })
		got := keep(cuts, func() int { return rapid.IntRange(1, 70).Draw(r, "chunk") })
		if !slices.EqualFunc(got, want, slices.Equal) {
			r.Fatalf("%s: %v keeps %v, want %v", p.Spec(), cuts, got, want)
		}
		for _, k := range got {
			seen := map[int32]bool{}
			for _, pos := range k {
				if pos < 0 || int(pos) >= prompt || seen[pos] {
					r.Fatalf("%s: kept %v of %d", p.Spec(), k, prompt)
				}
				seen[pos] = true
			}
		}
	})
}
