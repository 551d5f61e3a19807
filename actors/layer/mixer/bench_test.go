package mixer

import (
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/states"
	"github.com/shoal-llm/shoal/internal/engine/model/recurrent"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// BenchmarkPrefill runs 256 rows of a prompt through one layer of Qwen3.5-35B-A3B, after their projections.
func BenchmarkPrefill(b *testing.B) {
	const rows = 256
	s := Shape{Kind: recurrent.GatedDelta, NormEps: 1e-6, Groups: 1,
		Shape: states.Shape{Layers: 1, KeyHeads: 16, ValueHeads: 32, KeyDim: 128, ValueDim: 128, Taps: 4}}
	s.Width = s.Channels() + s.Group()*s.ValueDim
	s.In, s.Out = s.KeyHeads*s.Width, s.ValueHeads*s.ValueDim
	w := NewWeights(make([]float32, s.ValueHeads), make([]float32, s.ValueHeads), make([]float32, s.ValueDim), false)
	w.Conv = make([]float32, s.Taps*s.KeyHeads*s.Channels())
	a := memory.NewArena(1 << 26)
	defer a.Close()
	store := kvcache.NewPrefill(a, geometryOf(s), tensor.Span{Hi: kvHeads})
	if err := store.Reserve(rows); err != nil {
		b.Fatal(err)
	}
	pool := tensor.NewPool(1)
	defer pool.Close()
	m := New(s, rows)
	var runs []Run
	for head := range kvHeads {
		runs = append(runs, Run{N: rows, Prefill: true, State: store.State(0, head)})
	}
	for b.Loop() {
		m.Mix(&w, runs, pool.Run)
		for _, r := range runs {
			r.State.Advanced(0)
		}
	}
	b.ReportMetric(float64(rows*b.N)/b.Elapsed().Seconds(), "tokens/s")
}
