package shadowkv

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

// shadowNaive returns the tokens that a step of ShadowKV reads, by the paper's algorithms over rows
// in float64; none if the choice is so close that float32 may decide otherwise.
func shadowNaive(s *kvcache.Store, m landmarks, layer, head, n int, q []float32, g int, scale float64) (positions []int) {
	l := s.Layout()
	k, v := make([]float32, l.KDim), make([]float32, l.VDim)
	key := func(slot int) []float32 {
		l.Get(s.Blocks(layer, head)[slot/tensor.BlockSlots], slot%tensor.BlockSlots, k, v)
		return k
	}
	marked := n/m.chunk - m.local
	means, cosines := make([][]float64, marked), make([]float64, marked)
	for c := range means {
		means[c], cosines[c] = make([]float64, l.KDim), 1
		for i := range m.chunk {
			for d, x := range key(c*m.chunk + i) {
				means[c][d] += float64(x) / float64(m.chunk)
			}
		}
		for i := range m.chunk {
			dot, kk, mm := 0.0, 0.0, 0.0
			for d, x := range key(c*m.chunk + i) {
				dot, kk, mm = dot+float64(x)*means[c][d], kk+float64(x)*float64(x), mm+means[c][d]*means[c][d]
			}
			cosines[c] = min(cosines[c], dot/math.Sqrt(kk*mm))
		}
	}
	order := make([]int, marked)
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(cosines[a], cosines[b]) })
	outliers := slices.Clone(order[:m.outliers])
	near := m.outliers > 0 && cosines[order[m.outliers]]-cosines[order[m.outliers-1]] < 1e-5
	slices.Sort(order)
	share := make([]float64, marked)
	for r := range g {
		sum, p := 0.0, make([]float64, marked)
		for c := range p {
			if slices.Contains(outliers, c) {
				continue
			}
			for d, x := range means[c] {
				p[c] += x * float64(q[r*l.KDim+d]) * scale
			}
			p[c] = math.Exp(p[c])
			sum += p[c]
		}
		for c := range p {
			share[c] = max(share[c], p[c]/sum)
		}
	}
	for _, c := range outliers {
		share[c] = -1
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(share[b], share[a]) })
	if near || share[order[m.chunks-1]] < share[order[m.chunks]]*(1+1e-4) {
		return nil
	}
	keep := append(outliers, order[:m.chunks]...)
	slices.Sort(keep)
	for _, c := range keep {
		for i := range m.chunk {
			positions = append(positions, c*m.chunk+i)
		}
	}
	for slot := marked * m.chunk; slot < n; slot++ {
		positions = append(positions, slot)
	}
	return positions
}

type fataler interface {
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// A view has the tokens that the paper's plain form reads, after any history of steps. While the
// context is within the budget it has everything.
func TestShadowKVEqualsNaive(t *testing.T) {
	g := kvcache.Geometry{Layers: 2, KVHeads: 2, Group: 3, Layout: tensor.KVLayout{Type: tensor.F32, KDim: 8, VDim: 8}}
	for _, p := range []*kvcache.Policy{Method.Of(8, 40, 5, 4, 0, 0, 0, 128), Method.Of(4, 16, 0, 1, 0, 1, 0, 128),
		Method.Of(16, 32, 2, 2, 0, 0, 0, 128)} {
		t.Run(p.Spec(), func(t *testing.T) {
			m, chosen := p.Selector.(landmarks), 0
			check := func(r fataler, length int, steps [][2]int, q []float32) { // steps: tokens of a step, and how many are committed
				a := memory.NewArena(1 << 30)
				defer a.Close()
				prompt := kvcache.NewPrefill(a, g, tensor.Span{Lo: 0, Hi: 2})
				if err := prompt.Reserve(length); err != nil {
					r.Fatal(err)
				}
				kvcachetest.WriteNoise(prompt, 0, prompt.Staged())
				prompt.Commit(prompt.Staged())
				s, _, err := kvcachetest.HandOver(p, []*kvcache.Store{prompt}, 0)
				if err != nil {
					r.Fatal(err)
				}
				for _, step := range steps {
					n, from := step[0], s.Tokens()
					if err := s.Reserve(from + n); err != nil {
						r.Fatal(err)
					}
					kvcachetest.WriteNoise(s, from, from+n)
					s.Commit(step[1])
				}
				at := s.Tokens() - 1
				for layer := range 2 {
					blocks, n, mask := s.View(layer, 1, at, q, tensor.Score{Scale: 0.5}, nil, new(tensor.AttnScratch))
					if most := s.Read(layer, 1); len(blocks) > most || most > len(s.Blocks(layer, 1)) {
						r.Fatalf("layer %d: %d of %d blocks are viewed, the announced maximum is %d", layer, len(blocks), len(s.Blocks(layer, 1)), most)
					}
					if layer < p.Skip || (at+1)/m.chunk-m.local <= m.chunks+m.outliers {
						if n != at+1 || mask != nil || &blocks[0][0] != &s.Blocks(layer, 1)[0][0] {
							r.Fatalf("layer %d: %d of %d slots", layer, n, at+1)
						}
						continue
					}
					want := shadowNaive(s, m, layer, 1, at+1, q, 3, 0.5)
					if want == nil {
						continue
					}
					chosen++
					k, v, read := make([]float32, 8), make([]float32, 8), 0
					for i := range n {
						if mask != nil && mask[i/64]>>(i%64)&1 == 0 { // pages of whole panels are copied
							continue
						}
						if read == len(want) {
							r.Fatalf("%d tokens: more than %d slots are read", at+1, read)
						}
						g.Layout.Get(blocks[i/tensor.BlockSlots], i%tensor.BlockSlots, k, v)
						wk, wv := kvcachetest.Noise(g, layer, 1, want[read])
						if fmt.Sprint(k, v) != fmt.Sprint(wk, wv) {
							r.Fatalf("layer %d, %d tokens: the %d-th slot read is not position %d", layer, at+1, read, want[read])
						}
						read++
					}
					if read != len(want) || read > m.Reads(1<<20) {
						r.Fatalf("%d tokens: %d slots are read, want %d", at+1, read, len(want))
					}
				}
			}
			rapid.Check(t, func(r *rapid.T) {
				length, steps, q := rapid.IntRange(1, 500).Draw(r, "prompt"),
					make([][2]int, rapid.IntRange(1, 6).Draw(r, "steps")), make([]float32, 3*8)
				for i := range steps {
					n := rapid.IntRange(1, 40).Draw(r, "tokens")
					steps[i] = [2]int{n, rapid.IntRange(0, n).Draw(r, "accepted")}
				}
				for i := range q {
					q[i] = rapid.Float32Range(-1, 1).Draw(r, "q") * 4
				}
				check(r, length, steps, q)
			})
			chosen = 0
			for seed := range uint64(10) { // long enough to choose, for any random numbers before
				r, q := rand.New(rand.NewPCG(1, seed)), make([]float32, 3*8)
				for i := range q {
					q[i] = r.Float32()*8 - 4
				}
				check(t, 300+r.IntN(200), [][2]int{{1 + r.IntN(40), 1}, {40, r.IntN(40)}}, q)
			}
			if chosen < 5 {
				t.Errorf("only %d choices", chosen)
			}
		})
	}
}
