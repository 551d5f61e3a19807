package kvcache

import (
	"fmt"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// BenchmarkSelector measures a decode step of one head of the 1B shape under a selector, with its
// rows and index in memory: go test ./internal/engine/kvcache -run none -bench Selector. Each
// thread works on its own heads. Times are the least per head, averaged over 24 heads.
func BenchmarkSelector(b *testing.B) {
	const tokens, heads, group, width = 32768, 24, 4, 64
	g := Geometry{Layers: 1, KVHeads: heads, Group: group, Layout: tensor.KVLayout{Type: tensor.BF16, KDim: width, VDim: width}}
	for _, spec := range []string{"shadowkv", "shadowkv:int8=1", "shadowkv:chunk=16,int8=1,budget=256,outliers=8,local=2",
		"quest", "quest:page=64,budget=512", "squeezed", "squeezed:levels=2", "full"} {
		b.Run(spec, func(b *testing.B) {
			p, err := Parse(spec)
			if err != nil {
				b.Fatal(err)
			}
			a := memory.NewArena(1 << 40)
			defer a.Close()
			prompt := NewPrefill(a, g, tensor.Span{Lo: 0, Hi: heads})
			if err := prompt.Reserve(tokens); err != nil {
				b.Fatal(err)
			}
			for head := range heads {
				for pos := range 64 * tensor.BlockSlots {
					k, v := noise(g, 0, head, pos)
					prompt.Write(0, head, pos, k, v)
				}
				blocks := prompt.Blocks(0, head)
				for i := 64; i < len(blocks); i++ {
					copy(blocks[i], blocks[i%64])
				}
				k, v := noise(g, 0, head, tokens-1)
				prompt.Write(0, head, tokens-1, k, v)
			}
			prompt.Commit(tokens)
			s, _, err := handOver(p, []*Store{prompt}, 0)
			if err != nil {
				b.Fatal(err)
			}
			defer s.Release()
			for _, threads := range []int{1, 2} {
				b.Run(fmt.Sprint(threads), func(b *testing.B) {
					pool := tensor.NewPool(threads)
					defer pool.Close()
					var choose, attend [heads]time.Duration
					for b.Loop() {
						pool.Run(heads, func(head int) {
							sc := scratches.Get().(*tensor.AttnScratch)
							defer scratches.Put(sc)
							q, _ := noise(Geometry{Layout: tensor.KVLayout{KDim: group * width, VDim: 8}}, 7, head, 1)
							out := make([]float32, group*width)
							began := time.Now()
							blocks, n, mask := s.View(0, head, tokens-1, q, tensor.Score{Scale: 0.5}, nil, sc)
							chosen := time.Now()
							tensor.Attend(out, q, group, tensor.Score{Scale: 0.5}, g.Layout, blocks, n, mask, sc)
							attended := time.Now()
							least(&choose[head], chosen.Sub(began))
							least(&attend[head], attended.Sub(chosen))
						})
					}
					for name, all := range map[string][heads]time.Duration{"choose-us": choose, "attend-us": attend} {
						sum := time.Duration(0)
						for _, t := range all {
							sum += t
						}
						b.ReportMetric(float64(sum.Nanoseconds())/1e3/heads, name)
					}
				})
			}
		})
	}
}

func least(sofar *time.Duration, t time.Duration) {
	if *sofar == 0 || t < *sofar {
		*sofar = t
	}
}
