package shadowkv

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/method"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/subspace"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// rotations are rotations as models have them.
func rotations(d int) kvcache.Rope {
	return func(n int) (cos, sin []float32) {
		for i := range d / 2 {
			angle := float64(n) * math.Pow(10000, -2*float64(i)/float64(d))
			cos, sin = append(cos, float32(math.Cos(angle))), append(sin, float32(math.Sin(angle)))
		}
		return cos, sin
	}
}

// unrotated is the rotation of a layer without rotary positions.
func unrotated(d int) kvcache.Rope {
	cos, sin := slices.Repeat([]float32{1}, d/2), make([]float32, d/2)
	return func(int) ([]float32, []float32) { return cos, sin }
}

// eigen returns the eigenvalues of a symmetric matrix, the largest first, and their vectors as
// columns: cyclic Jacobi.
func eigen(a [][]float64) (values []float64, vectors [][]float64) {
	n := len(a)
	v := make([][]float64, n)
	for i := range v {
		v[i] = make([]float64, n)
		v[i][i] = 1
	}
	for range 30 {
		for p := range n {
			for q := p + 1; q < n; q++ {
				if a[p][q] == 0 {
					continue
				}
				theta := (a[q][q] - a[p][p]) / (2 * a[p][q])
				t := 1 / (math.Abs(theta) + math.Sqrt(theta*theta+1))
				if theta < 0 {
					t = -t
				}
				c := 1 / math.Sqrt(t*t+1)
				s := t * c
				for k := range n {
					a[k][p], a[k][q] = c*a[k][p]-s*a[k][q], s*a[k][p]+c*a[k][q]
				}
				for k := range n {
					a[p][k], a[q][k] = c*a[p][k]-s*a[q][k], s*a[p][k]+c*a[q][k]
				}
				for k := range n {
					v[k][p], v[k][q] = c*v[k][p]-s*v[k][q], s*v[k][p]+c*v[k][q]
				}
			}
		}
	}
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int {
		if a[i][i] > a[j][j] {
			return -1
		}
		return 1
	})
	vectors = make([][]float64, n)
	for j, from := range order {
		values = append(values, max(0, a[from][from]))
		for i := range n {
			vectors[i] = append(vectors[i], v[i][from])
		}
		_ = j
	}
	return values, vectors
}

// TestLowRankEqualsNaive: a step reads the same chunks as with exact keys. Values, outliers and
// everything after the prompt's chunks are exact. The other keys are those of the truncated SVD of
// the unrotated keys, by the paper's plain form in float64.
func TestLowRankEqualsNaive(t *testing.T) {
	for i, l := range []tensor.KVLayout{
		{Type: tensor.F32, KDim: 16, VDim: 8},
		{Type: tensor.BF16, KDim: 16, VDim: 24},
		{Type: tensor.Int8, KDim: 24, VDim: 16},
	} {
		for _, chunk := range []int{4, 8, 16, 64} {
			t.Run(fmt.Sprintf("%v/%d", l.Type, chunk), func(t *testing.T) {
				const rank, prompt, steps = 16, 600, 150
				g := kvcache.Geometry{Layers: 2, KVHeads: 3, Group: 2, Layout: l}
				outliers, wide := 128/chunk, 3*l.KDim
				if i == 1 {
					outliers = 0
				}
				params := []int{chunk, 64, outliers, 1, 0, 0, 0, 128}
				exact := Method.Of(params...)
				params[6], params[7] = 1, rank
				low := Method.Of(params...)
				a := memory.NewArena(1 << 30)
				defer a.Close()
				ropes, r := kvcache.Ropes{rotations(l.KDim), unrotated(l.KDim)}, rand.New(rand.NewPCG(uint64(chunk), uint64(i)))
				plain := make([][][]float64, g.Layers) // keys before rotation
				mix := make([]float64, wide*wide)
				for j := range mix {
					mix[j] = r.NormFloat64()
				}
				write := func(stores []*kvcache.Store, from, n int) {
					for layer := range g.Layers {
						for pos := from; pos < from+n; pos++ {
							row := make([]float64, wide)
							for c := range wide {
								x := r.NormFloat64() * math.Pow(0.8, float64(c)) // the spectrum falls fast
								for e := range row {
									row[e] += x * mix[c*wide+e]
								}
							}
							plain[layer] = append(plain[layer], row)
							cos, sin := ropes.Of(layer)(pos)
							v := make([]float32, l.VDim)
							for h := range 3 {
								k := make([]float32, l.KDim)
								for e := range k {
									k[e] = float32(row[h*l.KDim+e])
								}
								for e := range v {
									v[e] = float32(r.NormFloat64())
								}
								tensor.RopeRotateHalf(k, cos, sin)
								for _, s := range stores {
									s.Write(layer, h, pos, k, v)
								}
							}
						}
					}
				}
				part := kvcache.NewPrefill(a, g, tensor.Span{Lo: 0, Hi: 3})
				if err := part.Reserve(prompt); err != nil {
					t.Fatal(err)
				}
				write([]*kvcache.Store{part}, 0, prompt)
				part.Commit(prompt)
				var both []*kvcache.Store
				for _, p := range []*kvcache.Policy{exact, low} {
					s := kvcache.NewStore(a, g, p)
					if err := s.Open(prompt, prompt, part.Heads()); err != nil {
						t.Fatal(err)
					}
					for h := range 3 {
						if err := s.Adopt(part, h); err != nil {
							t.Fatal(err)
						}
					}
					if err := s.SealOn(func(n int, f func(i int)) {
						for i := range n {
							f(n - 1 - i)
						}
					}, ropes); err != nil {
						t.Fatal(err)
					}
					both = append(both, s)
				}
				part.Release()
				if both[1].Bytes() >= both[0].Bytes()*19/20 && chunk < 64 {
					t.Errorf("%d bytes with factors, %d without", both[1].Bytes(), both[0].Bytes())
				}
				for n := 0; n < steps; n += 30 {
					for _, s := range both {
						if err := s.Reserve(s.Tokens() + 30); err != nil {
							t.Fatal(err)
						}
					}
					write(both, prompt+n, 30)
					for _, s := range both {
						s.Commit(30)
					}
				}
				rebuilt := 0
				var off, least, size float64
				for layer := range g.Layers {
					gram := make([][]float64, wide)
					for i := range gram {
						gram[i] = make([]float64, wide)
						for j := range gram {
							for _, k := range plain[layer][:prompt] {
								gram[i][j] += k[i] * k[j]
							}
						}
					}
					_, vectors := eigen(gram)
					for h := range 3 {
						q := make([]float32, 2*l.KDim)
						for e := range q {
							q[e] = float32(r.NormFloat64())
						}
						var view [2][][]byte
						var n [2]int
						var mask [2][]uint64
						for i, s := range both {
							view[i], n[i], mask[i] = s.View(layer, h, prompt+steps-1, q, tensor.Score{Scale: 0.3}, ropes.Of(layer), new(tensor.AttnScratch))
						}
						if n[0] != n[1] || !slices.Equal(mask[0], mask[1]) || chunk < 16 && mask[0] == nil {
							t.Fatalf("layer %d, head %d: other slots are read: %d %x, exact %d %x", layer, h, n[1], mask[1], n[0], mask[0])
						}
						for slot := range n[0] {
							if mask[0] != nil && mask[0][slot/64]>>(slot%64)&1 == 0 {
								continue
							}
							k, v, wk, wv := make([]float32, l.KDim), make([]float32, l.VDim), make([]float32, l.KDim), make([]float32, l.VDim)
							l.Get(view[1][slot/64], slot%64, k, v)
							l.Get(view[0][slot/64], slot%64, wk, wv)
							if !slices.Equal(v, wv) {
								t.Fatalf("layer %d, head %d, slot %d: values %v, exact %v", layer, h, slot, v, wv)
							}
							if slices.Equal(k, wk) {
								continue
							}
							pos := slices.IndexFunc(plain[layer][:prompt], func(row []float64) bool { // the position of this key
								return near(row[h*l.KDim:][:l.KDim], wk, ropes.Of(layer),
									l, slices.IndexFunc(plain[layer], func(o []float64) bool { return &o[0] == &row[0] }))
							})
							if pos < 0 || pos >= prompt-chunk {
								t.Fatalf("layer %d, head %d, slot %d: a key that has no factors is not exact", layer, h, slot)
							}
							want := make([]float32, l.KDim)
							for e := range want {
								sum := 0.0
								for c := range rank {
									share := 0.0
									for j, x := range plain[layer][pos] {
										share += x * vectors[j][c]
									}
									sum += share * vectors[h*l.KDim+e][c]
								}
								want[e] = float32(sum)
							}
							cos, sin := ropes.Of(layer)(pos)
							tensor.RopeRotateHalf(want, cos, sin)
							rebuilt++
							for e := range want {
								off += math.Pow(float64(k[e]-wk[e]), 2)
								least += math.Pow(float64(want[e]-wk[e]), 2)
								size += math.Pow(float64(wk[e]), 2)
							}
						}
					}
				}
				t.Logf("%d keys rebuilt; off by %.2e of their squares, the truncated SVD by %.2e", rebuilt, off/size, least/size)
				noise := map[tensor.DType]float64{tensor.F32: 1e-9, tensor.BF16: 3e-5, tensor.Int8: 3e-4}[l.Type]
				if rebuilt < 100 || off > 1.02*least+noise*size {
					t.Errorf("%d keys are off by %.3e of their squares, the truncated SVD by %.3e", rebuilt, off/size, least/size)
				}
			})
		}
	}
}

// near reports whether a stored key is the key of a row at a position.
func near(row []float64, stored []float32, rope kvcache.Rope, l tensor.KVLayout, pos int) bool {
	k := make([]float32, len(row))
	for i, x := range row {
		k[i] = float32(x)
	}
	cos, sin := rope(pos)
	tensor.RopeRotateHalf(k, cos, sin)
	size := 0.0
	for _, x := range k {
		size += float64(x) * float64(x)
	}
	for i, x := range k {
		if math.Abs(float64(x-stored[i])) > 0.01*math.Sqrt(size) {
			return false
		}
	}
	return true
}

// Directions are found for any spectrum, with nearly the least number of multiplications.
func TestLeading(t *testing.T) {
	const n = 64
	for _, c := range []struct {
		name string
		fall func(i int) float64
	}{{"fast", func(i int) float64 { return math.Pow(0.5, float64(i)) }},
		{"slow", func(i int) float64 { return 1 / float64(1+i) }}, {"flat", func(int) float64 { return 1 }},
		{"steps", func(i int) float64 { return math.Pow(10, -float64(i/8)) }}, {"few", func(i int) float64 { return float64(max(0, 5-i)) }}} {
		r := rand.New(rand.NewPCG(3, 4))
		rows, gram, plain := make([][]float64, 4*n), make([]float32, n*n), make([][]float64, n)
		mix := make([]float64, n*n)
		for i := range mix {
			mix[i] = r.NormFloat64()
		}
		for i := range rows {
			rows[i] = make([]float64, n)
			for j := range n {
				x := r.NormFloat64() * math.Sqrt(c.fall(j))
				for e := range n {
					rows[i][e] += x * mix[j*n+e]
				}
			}
		}
		total := 0.0
		for i := range n {
			plain[i] = make([]float64, n)
			for j := range n {
				for _, row := range rows {
					plain[i][j] += row[i] * row[j]
				}
				gram[i*n+j] = float32(plain[i][j])
			}
			total += plain[i][i]
		}
		values, _ := eigen(plain)
		for _, rank := range []int{8, 24, 56} {
			basis := subspace.Leading(gram, n, rank, new(tensor.AttnScratch))
			kept := 0.0
			for q := range rank {
				for _, row := range rows {
					share := 0.0
					for e, x := range row {
						share += x * float64(basis[q*n+e])
					}
					kept += share * share
				}
				for p := range q {
					d := 0.0
					for e := range n {
						d += float64(basis[q*n+e]) * float64(basis[p*n+e])
					}
					if math.Abs(d) > 1e-5 {
						t.Errorf("%s, rank %d: rows %d and %d have the product %g", c.name, rank, p, q, d)
					}
				}
			}
			least := 0.0
			for _, x := range values[rank:] {
				least += x
			}
			if left := total - kept; left > 1.02*least+1e-5*total {
				t.Errorf("%s, rank %d: %.4g of %.4g is left, the least is %.4g", c.name, rank, left, total, least)
			} else {
				t.Logf("%s, rank %d: %.6g of the least", c.name, rank, left/least)
			}
		}
	}
}

// Models whose keys do not become smaller as factors are refused with advice.
func TestLowRankIsRefused(t *testing.T) {
	plain, latent := kvcache.Geometry{Layers: 1, KVHeads: 2, Layout: tensor.KVLayout{Type: tensor.BF16, KDim: 64, VDim: 64}},
		kvcache.Geometry{Layers: 1, KVHeads: 1, Units: 2, Layout: tensor.KVLayout{Type: tensor.BF16, KDim: 96, VDim: 64, Latent: true}}
	for _, c := range []struct {
		spec, why string
		g         kvcache.Geometry
	}{
		{"shadowkv:keys=lowrank", "rank=128 is not below the 128 elements", plain},
		{"shadowkv:keys=lowrank,rank=120", "", plain},
		{"shadowkv:keys=lowrank,rank=8", "latent", latent},
		{"shadowkv", "", latent},
	} {
		p, err := method.Parse([]method.Method{Method}, c.spec)
		if err != nil {
			t.Fatal(err)
		}
		err = c.g.Fits(p)
		if (c.why == "") != (err == nil) || err != nil && (!errors.Is(err, kvcache.ErrPolicy) || !strings.Contains(err.Error(), c.why)) {
			t.Errorf("%s: %v", c.spec, err)
		}
		if err != nil && !p.Shares(c.g, 100000) {
			t.Errorf("%s has factors all the same", c.spec)
		}
	}
	for _, spec := range []string{"shadowkv:keys=some", "shadowkv:rank=12", "shadowkv:keys=lowrank,rank=0"} {
		if _, err := method.Parse([]method.Method{Method}, spec); !errors.Is(err, kvcache.ErrPolicy) {
			t.Errorf("%s: %v", spec, err)
		}
	}
}

func BenchmarkLeading(b *testing.B) {
	for _, n := range []int{256, 512, 1024} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			r, gram := rand.New(rand.NewPCG(1, 1)), make([]float32, n*n)
			for i := range n {
				for j := range i + 1 {
					gram[i*n+j] = r.Float32()
					gram[j*n+i] = gram[i*n+j]
				}
			}
			for b.Loop() {
				subspace.Leading(gram, n, 128, new(tensor.AttnScratch))
			}
		})
	}
}

// BenchmarkFactorise seals one layer of 32,768 tokens on one thread: landmarks and factors.
func BenchmarkFactorise(b *testing.B) {
	for _, d := range []int{64, 128} {
		b.Run(fmt.Sprintf("8x%d", d), func(b *testing.B) {
			const tokens = 32768
			g := kvcache.Geometry{Layers: 1, KVHeads: 8, Group: 4, Layout: tensor.KVLayout{Type: tensor.BF16, KDim: d, VDim: d}}
			a := memory.NewArena(1 << 32)
			defer a.Close()
			part := kvcache.NewPrefill(a, g, tensor.Span{Lo: 0, Hi: 8})
			if err := part.Reserve(tokens); err != nil {
				b.Fatal(err)
			}
			r, rows := rand.New(rand.NewPCG(1, 2)), make([]float32, tokens*d)
			for h := range 8 {
				for i := range rows {
					rows[i] = r.Float32() - 0.5
				}
				part.WriteRun(0, h, 0, tokens, rows, d, rows, d)
			}
			part.Commit(tokens)
			cos, sin := make([]float32, d/2), make([]float32, d/2)
			for b.Loop() {
				b.StopTimer()
				s := kvcache.NewStore(a, g, Method.Of(8, 256, 48, 4, 0, 0, 1, 128))
				if err := s.Open(tokens, tokens, part.Heads()); err != nil {
					b.Fatal(err)
				}
				for h := range 8 {
					if err := s.Adopt(part, h); err != nil {
						b.Fatal(err)
					}
				}
				b.StartTimer()
				if err := s.SealOn(func(n int, f func(i int)) {
					for i := range n {
						f(i)
					}
				}, kvcache.Ropes{func(int) ([]float32, []float32) { return cos, sin }}); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				s.Release()
				b.StartTimer()
			}
		})
	}
}
