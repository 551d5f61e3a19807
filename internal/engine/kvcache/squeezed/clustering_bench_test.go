package squeezed

import (
	"strconv"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvcachetest"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// BenchmarkLongestStep measures the longest steps of a prompt's clustering and hand-over, for a
// layer of the 1B shape (8 heads of 64): go test ./internal/engine/kvcache/squeezed -run none -bench
// LongestStep.
func BenchmarkLongestStep(b *testing.B) {
	for _, tokens := range []int{32768, 131072} {
		b.Run(strconv.Itoa(tokens), func(b *testing.B) { longestStep(b, tokens) })
	}
}

func longestStep(t *testing.B, tokens int) {
	p := Method.Of(50, 2, 900, 64, 100, 8192)
	g := kvcache.Geometry{Layers: 1, KVHeads: 8, Group: 4, Layout: tensor.KVLayout{Type: tensor.BF16, KDim: 64, VDim: 64}}
	a, heads := memory.NewArena(1<<40), tensor.Span{Lo: 0, Hi: 8}
	pool := tensor.NewPool(0)
	defer pool.Close()
	prompt := kvcache.NewPrefill(a, g, heads)
	if err := prompt.Reserve(tokens); err != nil {
		t.Fatal(err)
	}
	kvcachetest.WriteNoise(prompt, 0, tokens)
	prompt.Commit(tokens)
	o, err := kvcache.NewObservation(a, g, heads, p.Needs, tokens)
	if err != nil {
		t.Fatal(err)
	}
	x := kvcache.IndexWorkOf(g, tokens, p)
	var sum, most [2]time.Duration
	for i := range x.Before {
		began, kind := time.Now(), 0
		if o.Prepare(prompt, p, i, pool.Run); i >= x.Fine {
			kind = 1
		}
		took := time.Since(began)
		sum[kind] += took
		most[kind] = max(most[kind], took)
	}
	ms := func(d time.Duration, what string) { t.ReportMetric(float64(d.Microseconds())/1000, what) }
	ms(most[0], "ms/fine-piece")
	ms(most[1], "ms/coarse-piece")
	ms(sum[0], "ms/fine")
	ms(sum[1], "ms/coarse")
	own := kvcache.NewStore(a, g, p)
	own.Score = tensor.Score{Scale: 0.125}
	if err := own.Open(tokens, tokens, tensor.Span{}); err != nil {
		t.Fatal(err)
	}
	most, sum = [2]time.Duration{}, [2]time.Duration{}
	for piece := range x.Pieces - x.Before - 1 {
		began, kind := time.Now(), 1
		if _, heads, moved := g.Moved(piece); moved {
			kept, stats := make([]kvcache.Kept, heads.Len()), make([]*kvcache.Statistics, heads.Len())
			pool.Run(heads.Len(), func(i int) {
				stats[i] = o.Statistics(prompt, 0, heads.Lo+i, tensor.Score{Scale: 0.125})
				kept[i] = p.Keep(stats[i])
				if err := own.Keep(prompt, 0, heads.Lo+i, kept[i]); err != nil {
					t.Error(err)
				}
			})
			for i := range stats {
				if err := own.KeepQueries(stats[i]); err != nil {
					t.Fatal(err)
				}
			}
			kind = 0
		}
		if err := own.Index(piece, pool.Run); err != nil {
			t.Fatal(err)
		}
		took := time.Since(began)
		sum[kind] += took
		most[kind] = max(most[kind], took)
	}
	sealed := time.Now()
	if err := own.SealOn(pool.Run, nil); err != nil {
		t.Fatal(err)
	}
	ms(most[0], "ms/move-piece")
	ms(most[1], "ms/prune-piece")
	ms(sum[0]+sum[1]+time.Since(sealed), "ms/handover")
	ms(time.Since(sealed), "ms/seal")
}
