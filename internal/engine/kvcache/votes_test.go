package kvcache_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvcachetest"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// naiveVotes are the votes of the last obs of n tokens in float64, pooled, as SnapStream's equations have
// them. The matrix of weights exists whole here. of is the parameter votes.
func naiveVotes(s *kvcache.Statistics, obs, pool int, of string, lo, hi int) []float64 {
	n, d := s.Prompt, s.Layout.KDim
	var keys [][]float32
	s.EachKey(func(_ int, key []float32) { keys = append(keys, slices.Clone(key)) })
	obs = min(obs, n)
	votes := make([]float64, n)
	rows := len(s.Queries) / (s.Group * d)
	for i := range obs {
		for h := range s.Group {
			q := s.Queries[((rows-obs+i)*s.Group+h)*d:][:d]
			weights, sum := make([]float64, n), 0.0
			for j := range n {
				if j > n-obs+i || of == "candidates" && (j < lo || j >= hi) {
					continue
				}
				x := 0.0
				for c := range d {
					x += float64(q[c]) * float64(keys[j][c])
				}
				weights[j] = math.Exp(x * float64(s.Score.Scale))
				sum += weights[j]
			}
			for j, w := range weights {
				if w > 0 {
					votes[j] += w / sum
				}
			}
		}
	}
	if of == "prefix" {
		votes = votes[:n-obs]
	}
	pooled := make([]float64, n)
	for i := range votes {
		for j := i - pool/2; j <= i+pool/2; j++ {
			if j >= 0 && j < len(votes) {
				pooled[i] += votes[j] / float64(pool)
			}
		}
	}
	return pooled
}

// TestVotesEqualNaive compares the tokens that votes choose with those of the plain form of equations 1 to 3.
func TestVotesEqualNaive(t *testing.T) {
	for _, of := range []string{"prompt", "prefix", "candidates"} {
		for _, name := range []string{"snapkv", "snapstream"} {
			t.Run(name+" "+of, func(t *testing.T) {
				rapid.Check(t, func(r *rapid.T) {
					g := kvcache.Geometry{Layers: 1, KVHeads: 2, Group: rapid.SampledFrom([]int{1, 3}).Draw(r, "group"),
						Layout: tensor.KVLayout{Type: tensor.F32, KDim: 16, VDim: 8}}
					n, obs, pool := rapid.IntRange(2, 150).Draw(r, "prompt"), rapid.IntRange(1, 20).Draw(r, "obs"),
						rapid.SampledFrom([]int{1, 3, 7}).Draw(r, "pool")
					k, sink, recent := rapid.IntRange(1, 40).Draw(r, "topk"), rapid.IntRange(0, 6).Draw(r, "sink"), rapid.IntRange(1, 30).Draw(r, "recent")
					spec := fmt.Sprintf("snapstream:sink=%d,recent=%d,topk=%d,obs=%d,pool=%d,votes=%s", sink, recent, k, obs, pool, of)
					if name == "snapkv" {
						sink, recent = 0, obs
						spec = fmt.Sprintf("snapkv:topk=%d,obs=%d,pool=%d,votes=%s", k, obs, pool, of)
					}
					p, err := kvpolicy.Parse(spec)
					if err != nil {
						r.Fatal(err)
					}
					a := memory.NewArena(1 << 30)
					defer a.Close()
					s := kvcache.NewPrefill(a, g, tensor.Span{Lo: 0, Hi: 2})
					if err := s.Reserve(n); err != nil {
						r.Fatal(err)
					}
					kvcachetest.WriteNoise(s, 0, n)
					s.Commit(n)
					seen := kvcachetest.Statistics(s, 0, 1)
					for i := range seen.Queries {
						seen.Queries[i] = rapid.Float32Range(-4, 4).Draw(r, "query")
					}
					kept := slices.Clone(p.Keep(seen).Positions)
					slices.Sort(kept)
					lo, hi := sink, n-recent
					if lo >= hi || hi-lo <= k {
						if len(kept) != n {
							r.Fatalf("%d of %d tokens stay, though all fit", len(kept), n)
						}
						return
					}
					votes := naiveVotes(seen, obs, pool, of, lo, hi)
					order := make([]int32, 0, hi-lo)
					for pos := lo; pos < hi; pos++ {
						order = append(order, int32(pos))
					}
					slices.SortStableFunc(order, func(a, b int32) int {
						if votes[a] > votes[b] {
							return -1
						} else if votes[a] < votes[b] {
							return 1
						}
						return 0
					})
					if last, next := votes[order[k-1]], votes[order[k]]; last-next < 1e-5*last {
						return // too close to call
					}
					want := append(kvcache.Positions(nil, 0, sink), order[:k]...)
					want = kvcache.Positions(want, n-recent, n)
					slices.Sort(want)
					if !slices.Equal(kept, want) {
						r.Fatalf("%s of %d tokens keeps %v, equation: %v", spec, n, kept, want)
					}
				})
			})
		}
	}
}
