package squeezed

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvcachetest"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// cosinesNaive clusters unit vectors in float64 by the plain form of k-means.
func cosinesNaive(x [][]float64, c int) []int {
	unit := func(v []float64) []float64 {
		sum, out := 0.0, make([]float64, len(v))
		for _, a := range v {
			sum += a * a
		}
		for i, a := range v {
			out[i] = a / math.Sqrt(sum)
		}
		return out
	}
	var u, centres [][]float64
	for _, v := range x {
		u = append(u, unit(v))
	}
	for j := range c {
		centres = append(centres, u[j*len(x)/c])
	}
	labels := make([]int, len(x))
	for round := 0; ; round++ {
		for i, v := range u {
			best := math.Inf(-1)
			for j, m := range centres {
				dot := 0.0
				for e := range v {
					dot += v[e] * m[e]
				}
				if dot > best {
					best, labels[i] = dot, j
				}
			}
		}
		if round == kMeansRounds {
			return labels
		}
		for j := range centres {
			sum, some := make([]float64, len(u[0])), false
			for i, v := range u {
				if labels[i] == j {
					some = true
					for e := range v {
						sum[e] += v[e]
					}
				}
			}
			if some {
				centres[j] = unit(sum)
			}
		}
	}
}

// naiveClusters are the clusters of one head, in float64.
type naiveClusters struct {
	members, coarse [][]int // tokens of a cluster; clusters of a coarse one
	means, tops     [][]float64
}

func (h *naiveClusters) sizes(of [][]int) (n []int) {
	for _, m := range of {
		n = append(n, len(m))
	}
	return n
}

// keys is the number of tokens of each coarse cluster.
func (h *naiveClusters) keys() (n []int) {
	for _, m := range h.coarse {
		sum := 0
		for _, i := range m {
			sum += len(h.members[i])
		}
		n = append(n, sum)
	}
	return n
}

func meanOf(rows [][]float64, of []int) []float64 {
	mean := make([]float64, len(rows[0]))
	for _, i := range of {
		for e, x := range rows[i] {
			mean[e] += x / float64(len(of))
		}
	}
	return mean
}

func naiveCluster(c clusters, keys [][]float64) (h naiveClusters) {
	parts := max(1, (len(keys)+c.segment/2)/c.segment)
	for p := range parts {
		lo, hi := p*len(keys)/parts, (p+1)*len(keys)/parts
		members := make([][]int, max(1, (hi-lo)*c.share/1000))
		for i, label := range cosinesNaive(keys[lo:hi], len(members)) {
			members[label] = append(members[label], lo+i)
		}
		h.members = append(h.members, members...)
	}
	h.members = slices.DeleteFunc(h.members, func(m []int) bool { return len(m) == 0 })
	slices.SortFunc(h.members, func(a, b []int) int { return b[0] - a[0] })
	for _, m := range h.members {
		h.means = append(h.means, meanOf(keys, m))
	}
	if c.coarse > 0 {
		coarse := make([][]int, max(1, len(h.means)*c.coarse/c.share))
		for i, label := range cosinesNaive(h.means, len(coarse)) {
			coarse[label] = append(coarse[label], i)
		}
		h.coarse = slices.DeleteFunc(coarse, func(m []int) bool { return len(m) == 0 })
		for _, m := range h.coarse {
			h.tops = append(h.tops, meanOf(h.means, m))
		}
	}
	return h
}

// sharesNaive is equation 1 for one query; in selects the centroids that count.
func sharesNaive(means [][]float64, sizes []int, q []float32, scale float64, in func(i int) bool) []float64 {
	out, sum := make([]float64, len(means)), 0.0
	for i, m := range means {
		if in == nil || in(i) {
			for e, x := range m {
				out[i] += x * float64(q[e]) * scale
			}
			out[i] = math.Exp(out[i])
			sum += float64(sizes[i]) * out[i]
		}
	}
	for i := range out {
		out[i] /= max(sum, math.SmallestNonzeroFloat64) // 0 if no centroid counts
	}
	return out
}

// largest is the mean over queries, and then the largest over the query heads.
func largest(means [][]float64, sizes []int, queries []float32, g, d int, scale float64, in func(i int) bool) []float64 {
	best := make([]float64, len(means))
	n := len(queries) / (g * d)
	for r := range g {
		mean := make([]float64, len(means))
		for w := range n {
			for i, x := range sharesNaive(means, sizes, queries[(w*g+r)*d:][:d], scale, in) {
				mean[i] += x / float64(n)
			}
		}
		for i, x := range mean {
			best[i] = max(best[i], x)
		}
	}
	return best
}

func quantileNaive(shares [][]float64, sizes [][]int, thousandths int) float64 {
	var all []float64
	for i := range shares {
		for j, x := range shares[i] {
			for range sizes[i][j] {
				all = append(all, x)
			}
		}
	}
	slices.Sort(all)
	if thousandths == 0 {
		return 0
	}
	return all[(len(all)*thousandths+999)/1000-1]
}

// A step attends to the tokens that the paper's plain form selects, in each head by its own clusters,
// and to all tokens after the clusters. Tokens that are written and undone in between change nothing.
func TestSqueezedEqualsNaive(t *testing.T) {
	g := kvcache.Geometry{Layers: 2, KVHeads: 2, Group: 3, Layout: tensor.KVLayout{Type: tensor.F32, KDim: 8, VDim: 8}}
	for _, p := range []*kvcache.Policy{Method.Of(100, 1, 800, 8, 5, 1000), Method.Of(200, 2, 700, 3, 9, 1000),
		Method.Of(250, 2, 500, 1, 4, 64), Method.Of(50, 1, 0, 8, 5, 100)} {
		t.Run(p.Spec(), func(t *testing.T) {
			c, chosen, left := p.Selector.(clusters), 0, 0
			rapid.Check(t, func(r *rapid.T) {
				a := memory.NewArena(1 << 30)
				defer a.Close()
				prompt := kvcache.NewPrefill(a, g, tensor.Span{Lo: 0, Hi: 2})
				n := rapid.IntRange(1, 400).Draw(r, "context")
				if err := prompt.Reserve(n); err != nil {
					r.Fatal(err)
				}
				kvcachetest.WriteNoise(prompt, 0, n)
				prompt.Commit(n)
				s, _, err := kvcachetest.HandOver(p, []*kvcache.Store{prompt}, 0)
				if err != nil {
					r.Fatal(err)
				}
				for range rapid.IntRange(1, 4).Draw(r, "steps") {
					n, from := rapid.IntRange(1, 40).Draw(r, "tokens"), s.Tokens()
					if err := s.Reserve(from + n); err != nil {
						r.Fatal(err)
					}
					kvcachetest.WriteNoise(s, from, from+n)
					s.Commit(rapid.IntRange(0, n).Draw(r, "accepted"))
				}
				at, q := s.Tokens()-1, make([]float32, 3*8)
				for i := range q {
					q[i] = rapid.Float32Range(-1, 1).Draw(r, "q") * 6
				}
				keys := c.arranged(n)
				var heads []naiveClusters
				var s1, s2 [][]float64
				var n1, n2 [][]int
				queries := kvcachetest.Observed(n, g)[(n-min(c.obs, n))*3*8:]
				for i := 0; i < 4 && keys > 0; i++ {
					var rows [][]float64
					for pos := range keys {
						k, _ := kvcachetest.Noise(g, i/2, i%2, pos)
						row := make([]float64, 8)
						for e, x := range k {
							row[e] = float64(x)
						}
						rows = append(rows, row)
					}
					h := naiveCluster(c, rows)
					heads, n2 = append(heads, h), append(n2, h.sizes(h.members))
					if c.coarse > 0 {
						s1, n1 = append(s1, largest(h.tops, h.keys(), queries, 3, 8, 0.25, nil)), append(n1, h.keys())
					}
				}
				t1, t2 := 0.0, 0.0
				if c.coarse > 0 && keys > 0 {
					t1 = quantileNaive(s1, n1, 500)
				}
				among := func(h *naiveClusters, shares []float64, bound float64) func(int) bool {
					if c.coarse == 0 {
						return nil
					}
					return func(i int) bool {
						for j, m := range h.coarse {
							if slices.Contains(m, i) {
								return shares[j] > bound
							}
						}
						return false
					}
				}
				for i := range heads {
					h := &heads[i]
					var coarse []float64
					if c.coarse > 0 {
						coarse = s1[i]
					}
					s2 = append(s2, largest(h.means, n2[i], queries, 3, 8, 0.25, among(h, coarse, t1)))
				}
				if keys > 0 {
					t2 = quantileNaive(s2, n2, c.sparsity)
				}
				for i := range 4 {
					blocks, slots, mask := s.View(i/2, i%2, at, q, tensor.Score{Scale: 0.25}, nil, new(tensor.AttnScratch))
					got := map[string]bool{}
					k, v := make([]float32, 8), make([]float32, 8)
					for slot := range slots {
						if mask == nil || mask[slot/64]>>(slot%64)&1 != 0 {
							g.Layout.Get(blocks[slot/tensor.BlockSlots], slot%tensor.BlockSlots, k, v)
							got[fmt.Sprint(k, v)] = true
						}
					}
					reads := func(pos int) bool { k, v := kvcachetest.Noise(g, i/2, i%2, pos); return got[fmt.Sprint(k, v)] }
					for pos := keys; pos <= at; pos++ {
						if !reads(pos) {
							r.Fatalf("head %d of %d tokens, %d clustered: position %d is not read", i, at+1, keys, pos)
						}
					}
					if keys == 0 {
						continue
					}
					h, near := &heads[i], false
					var coarse []float64
					if c.coarse > 0 {
						coarse = largest(h.tops, n1[i], q, 3, 8, 0.25, nil)
						near = slices.ContainsFunc(coarse, func(x float64) bool { return math.Abs(x-t1) < 1e-4*t1 })
					}
					for j, x := range largest(h.means, n2[i], q, 3, 8, 0.25, among(h, coarse, t1)) {
						if near || math.Abs(x-t2) < 1e-4*t2 {
							continue // float32 may decide otherwise
						}
						for _, pos := range h.members[j] {
							if reads(pos) != (x > t2) {
								r.Fatalf("head %d of %d tokens, %d clustered: position %d of cluster %d with a share of %v, threshold %v: read %v",
									i, at+1, keys, pos, j, x, t2, reads(pos))
							}
						}
						if x > t2 {
							chosen++
						} else {
							left++
						}
					}
				}
			})
			if chosen < 50 || left < 50 && c.sparsity > 0 {
				t.Errorf("only %d clusters were chosen and %d left", chosen, left)
			}
		})
	}
}

// A prompt's tail becomes decode rows if enough tokens before it can be clustered.
func TestContext(t *testing.T) {
	p := Method.Of(50, 1, 900, 64, 100, 8192)
	for prompt, want := range map[int]int{1: 1, 164: 164, 183: 183, 184: 120, 10000: 9936} {
		if got := p.Context(prompt); got != want {
			t.Errorf("of %d tokens %d are the context, want %d", prompt, got, want)
		}
	}
	if n := kvcache.Full().Context(500); n != 500 {
		t.Errorf("full reads %d of 500", n)
	}
}

// Rows from outside whose positions are not a permutation are refused.
func TestSqueezedRefusesRows(t *testing.T) {
	for name, positions := range map[string][]int32{"twice": {3, 4, 0, 1, 1}, "behind": {3, 5, 0, 1, 2}, "below": {3, -1, 0, 1, 2}} {
		if begins, err := runsOf(positions, 5); err == nil {
			t.Errorf("%s: %v", name, begins)
		}
	}
	if begins, err := runsOf([]int32{3, 4, 1, 0, 2, 9}, 5); err != nil || !slices.Equal(begins, []int{0, 2, 3}) {
		t.Errorf("%v, %v", begins, err)
	}
}

// Clustering in pieces, some or all of them, by any number of tasks, gives the clusters of
// clustering at the end of a prompt.
func TestClusteringInPieces(t *testing.T) {
	p := Method.Of(100, 2, 600, 4, 8, 64)
	g := kvcache.Geometry{Layers: 2, KVHeads: 3, Layout: tensor.KVLayout{Type: tensor.BF16, KDim: 16, VDim: 8}}
	const tokens = 333
	x := kvcache.IndexWorkOf(g, tokens, p)
	if x.After != tokens-8 || x.Fine != 5*g.Layers*36 || x.Before != 6*g.Layers*36 || x.Pieces != x.Before+5*g.Layers+1 ||
		x.Move != (325*16+32*8)*int64(g.Layout.KDim)/4 || x.Work != 65*6*int64(g.Layout.KDim)/4 || x.Coarse != 32*6*int64(g.Layout.KDim)/4 {
		t.Fatalf("%+v", x)
	}
	for _, w := range []struct{ done, most, want int }{{0, 0, 1}, {0, 1 << 40, x.Fine}, {3, 5 * int(x.Work), 5},
		{x.Fine - 1, 1 << 40, 1}, {x.Fine, 7 * int(x.Coarse), 7}, {x.Fine, 1 << 40, x.Before - x.Fine},
		{x.Before, 3 * int(x.Move), 3}, {x.Before + 1, 1 << 40, 5 * g.Layers}} {
		if got := x.Within(w.done, int64(w.most)); got != w.want {
			t.Errorf("after %d pieces %d multiplications are %d pieces, want %d", w.done, w.most, got, w.want)
		}
	}
	if x := kvcache.IndexWorkOf(g, 20, p); x.Pieces != 0 {
		t.Errorf("of a short prompt: %+v", x)
	}
	if x := kvcache.IndexWorkOf(g, tokens, kvcache.Full()); x.Pieces != 0 {
		t.Errorf("of full: %+v", x)
	}
	a := memory.NewArena(1 << 30)
	heads := tensor.Span{Lo: 0, Hi: g.KVHeads}
	prompt := kvcache.NewPrefill(a, g, heads)
	if err := prompt.Reserve(tokens); err != nil {
		t.Fatal(err)
	}
	kvcachetest.WriteNoise(prompt, 0, tokens)
	prompt.Commit(tokens)
	want := map[[2]int]kvcache.Kept{}
	for layer := range g.Layers {
		for head := range g.KVHeads {
			want[[2]int{layer, head}] = p.Keep(kvcache.StatisticsOf(prompt, layer, head))
		}
	}
	for _, pieces := range []int{0, 1, 36*g.Layers + 5, x.Fine, x.Fine + 45, x.Before} {
		o, err := kvcache.NewObservation(a, g, heads, p.Needs, tokens)
		if err != nil {
			t.Fatal(err)
		}
		for i := range pieces {
			o.Prepare(prompt, p, i, func(n int, f func(i int)) {
				for i := n - 1; i >= 0; i-- {
					f(i)
				}
			})
		}
		for at, kept := range want {
			s := o.Statistics(prompt, at[0], at[1], tensor.Score{Scale: 1})
			if whole := min(5, pieces/(36*g.Layers)); preparedOf(s.Prepared).segments != whole {
				t.Errorf("%d pieces: %d segments of %d are clustered", pieces, preparedOf(s.Prepared).segments, whole)
			}
			if coarse := s.Labels[0] < 0; pieces == x.Before && !coarse || pieces <= x.Fine && coarse {
				t.Errorf("%d pieces: head %v has coarse clusters: %v", pieces, at, coarse)
			}
			if got := p.Keep(s); !slices.Equal(got.Positions, kept.Positions) || !slices.Equal(got.Index, kept.Index) {
				t.Errorf("%d pieces: head %v lies otherwise", pieces, at)
			}
		}
		if pieces == x.Before { // the found labels are used
			labels := o.Statistics(prompt, 0, 0, tensor.Score{Scale: 1}).Labels
			first := slices.IndexFunc(labels[1:], func(l int32) bool { return l < 0 && l != labels[0] }) + 1
			labels[0], labels[first] = labels[first], labels[0]
			if slices.Equal(p.Keep(o.Statistics(prompt, 0, 0, tensor.Score{Scale: 1})).Index, want[[2]int{0, 0}].Index) {
				t.Error("the coarse pieces are not looked at")
			}
			labels[3] = 0
			if slices.Equal(p.Keep(o.Statistics(prompt, 0, 0, tensor.Score{Scale: 1})).Positions, want[[2]int{0, 0}].Positions) {
				t.Error("the pieces are not looked at")
			}
		}
		o.Release()
	}
	prompt.Release()
	if a.Used() != 0 {
		t.Errorf("%d bytes are left", a.Used())
	}
}
