package kvcache

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// questNaive returns the positions that Quest reads for one query group, by the paper's algorithm
// over rows in float64, unless the choice is too close to call.
func questNaive(t *testing.T, s *Store, page, most int, layer, head, n int, q []float32, g int) (positions []int) {
	l := s.g.Layout
	pages := (n + page - 1) / page
	scores := make([]float64, pages)
	k, v := make([]float32, l.KDim), make([]float32, l.VDim)
	for i := range scores {
		lo, hi := make([]float64, l.KDim), make([]float64, l.KDim)
		for slot := i * page; slot < min(n, (i+1)*page); slot++ {
			l.Get(s.Blocks(layer, head)[slot/tensor.BlockSlots], slot%tensor.BlockSlots, k, v)
			for d, x := range k {
				if slot == i*page {
					lo[d], hi[d] = float64(x), float64(x)
				}
				lo[d], hi[d] = min(lo[d], float64(x)), max(hi[d], float64(x))
			}
		}
		scores[i] = math.Inf(-1)
		for r := range g {
			sum := 0.0
			for d := range lo {
				x := float64(q[r*l.KDim+d])
				sum += max(x*lo[d], x*hi[d])
			}
			scores[i] = max(scores[i], sum)
		}
	}
	scores[0], scores[pages-1] = math.Inf(1), math.Inf(1)
	order := make([]int, pages)
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch {
		case scores[a] > scores[b]:
			return -1
		case scores[a] < scores[b]:
			return 1
		}
		return 0
	})
	keep := order[:min(most, pages)]
	slices.Sort(keep)
	for _, i := range keep {
		for slot := i * page; slot < min(n, (i+1)*page); slot++ {
			positions = append(positions, slot)
		}
	}
	return positions
}

// A step reads the chosen pages and the whole index, in layers with a selector.
func TestReadBytes(t *testing.T) {
	g := Geometry{Layers: 3, KVHeads: 2, Group: 4, Layout: tensor.KVLayout{Type: tensor.BF16, KDim: 64, VDim: 64}}
	row := int64(g.Layout.RowBytes())
	full := 3 * 2 * 5000 * row
	for spec, want := range map[string]int64{
		"full":                            full,
		"streaming:sink=4,recent=60":      3 * 2 * 64 * row,
		"quest:page=16,budget=1024":       3 * 2 * (1024*row + 313*2*64*2), // 312.5 pages of two bounds
		"quest:page=32,budget=512,skip=1": full/3 + 2*2*(512*row+157*2*64*2),
		// the first 1040 tokens, 512 others, and the pages of the newest 1020
		"snapstream:recall=512": 3 * 2 * ((1040+512+1040)*row + 313*2*64*2),
		// every row is read, without an index
		"quest:page=16,budget=5008": full,
		// a landmark, its cosine, and an eighth of a line
		"shadowkv:chunk=8,budget=256,outliers=48,local=4": 3 * 2 * ((256+384+39)*row + 625*(64*2+4+1)),
		// and the basis; the coefficients are as large as the keys
		"shadowkv:budget=256,keys=lowrank,rank=64":               3 * 2 * ((256+384+39)*row + 625*(64*2+4+1) + 64*64*4),
		"shadowkv:chunk=16,budget=256,outliers=4,local=4,int8=1": 3 * 2 * ((256+64+79)*row + 313*(64+8+4+1)),
	} {
		p, err := Parse(spec)
		if err != nil {
			t.Fatal(err)
		}
		if got := ReadBytes(g, 4000, 5000, p); got != want {
			t.Errorf("%s reads %d bytes, want %d", spec, got, want)
		}
	}
	g.Windows = []int{0, 100, 100}
	if got, want := ReadBytes(g, 4000, 5000, Full()), full/3+2*2*100*row; got != want {
		t.Errorf("with windows %d bytes, want %d", got, want)
	}
}

// A view holds the tokens that the paper's plain form chooses, in order, after any history of
// steps. While the context is within the budget it holds everything, without a copy.
func TestQuestEqualsNaive(t *testing.T) {
	g := Geometry{Layers: 2, KVHeads: 2, Group: 3, Layout: tensor.KVLayout{Type: tensor.F32, KDim: 8, VDim: 8}}
	for _, p := range []*Policy{parse("quest:page=16,budget=64,skip=0"), parse("quest:page=16,budget=35,skip=1"),
		parse("quest:page=32,budget=128,skip=0"), parse("quest:page=64,budget=128,skip=0")} {
		t.Run(p.Spec(), func(t *testing.T) {
			rapid.Check(t, func(r *rapid.T) {
				a := memory.NewArena(1 << 30)
				defer a.Close()
				s := ownedOf(t, a, g, p, rapid.IntRange(1, 400).Draw(r, "prompt"))
				for range rapid.IntRange(1, 6).Draw(r, "steps") {
					n, from := rapid.IntRange(1, 40).Draw(r, "tokens"), s.Tokens()
					if err := s.Reserve(from + n); err != nil {
						r.Fatal(err)
					}
					write(s, from, from+n)
					s.Commit(rapid.IntRange(0, n).Draw(r, "accepted"))
				}
				at := s.Tokens() - 1
				q := make([]float32, 3*8)
				for i := range q {
					q[i] = rapid.Float32Range(-1, 1).Draw(r, "q") + float32(i)/1000
				}
				for layer := range 2 {
					blocks, n, mask := s.View(layer, 1, at, q, tensor.Score{Scale: 1}, nil, new(tensor.AttnScratch))
					if most := s.Read(layer, 1); len(blocks) > most || most > len(s.Blocks(layer, 1)) {
						r.Fatalf("layer %d: %d of %d blocks are viewed, the announced maximum is %d", layer, len(blocks), len(s.Blocks(layer, 1)), most)
					}
					if layer < p.Skip || at < p.Selector.Reads(1<<20) {
						if n != at+1 || mask != nil || &blocks[0][0] != &s.Blocks(layer, 1)[0][0] || len(blocks) != len(s.Blocks(layer, 1)) {
							r.Fatalf("layer %d: %d of %d slots", layer, n, at+1)
						}
						continue
					}
					want := questNaive(t, s, p.Selector.Page(), p.Selector.Reads(1<<30)/p.Selector.Page(), layer, 1, at+1, q, 3)
					k, v := make([]float32, 8), make([]float32, 8)
					for i := range max(n, len(want)) {
						if n != len(want) {
							r.Fatalf("%d slots, want %d", n, len(want))
						}
						g.Layout.Get(blocks[i/tensor.BlockSlots], i%tensor.BlockSlots, k, v)
						wk, wv := row(g, layer, 1, want[i])
						if fmt.Sprint(k, v) != fmt.Sprint(wk, wv) {
							r.Fatalf("layer %d, %d tokens: slot %d is not position %d", layer, at+1, i, want[i])
						}
					}
				}
			})
		})
	}
}
