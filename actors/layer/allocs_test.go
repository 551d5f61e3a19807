package layer

import (
	"testing"

	"github.com/shoal-llm/shoal/actors/layer/experts"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// raceEnabled reports a build with the race detector, which moves some stack variables to the heap.
var raceEnabled bool

// TestDecodeAllocatesNothing runs the compute phases of decode steps, for all types of weights and for
// one or several sequences.
func TestDecodeAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("counts the allocations of the plain build")
	}
	d := Dims{Hidden: 256, Heads: 8, KVHeads: 4, HeadDim: 32, FFN: 512, NormEps: 1e-5,
		MoE: model.MoE{Experts: 8, PerToken: 3, FFN: 64, Shared: 96,
			Router: model.Router{Score: model.Sigmoid, Normalise: true, Scale: 2.5, Bias: true, Groups: 4, TopGroups: 2, GroupTop: 2}}}
	place, err := topology.Place(1, topology.Gather, topology.Shape{Hidden: d.Hidden, Heads: d.Heads, KVHeads: d.KVHeads, HeadDim: d.HeadDim,
		FFN: d.FFN, Vocab: 64, FFNUnits: tensor.Units(d.FFN), FFNUnitStart: func(u int) int { return tensor.UnitsSpan(d.FFN, 0, u).Hi }},
		[]topology.Member{{ID: "a"}})
	if err != nil {
		t.Fatal(err)
	}
	pool := tensor.NewPool(2)
	defer pool.Close()
	many := tensor.NewPool(6) // more threads than heads: a long sequence is split by runs of slots
	defer many.Close()
	arena := memory.NewArena(64 << 20)
	defer arena.Close()
	layout := tensor.KVLayout{Type: tensor.BF16, KDim: d.HeadDim, VDim: d.HeadDim}
	for i, dt := range []tensor.DType{tensor.F32, tensor.BF16, tensor.Q8_0, tensor.Q4_0, tensor.F32, tensor.Q8_0} {
		w := randomWeights(t, d, dt)
		if i >= 4 {
			w.Experts = randomExperts(t, d, dt)
		}
		for _, sequences := range []int{0, 1, 5} {
			pool, start := pool, 200
			if sequences == 0 {
				sequences, pool, start = 1, many, 2*tensor.RunSlots+9
			}
			b := newBatch(d, sequences, layout, pool)
			var segments []Segment
			for i := range sequences {
				segments = append(segments,
					Segment{Seq: uint64(i), Cache: OwnedCache{filled(t, arena, d, layout, start), tensor.Score{Scale: 0.2}, nil}, N: 1, Start: start})
			}
			if err := b.Reset(place, 0, segments); err != nil {
				t.Fatal(err)
			}
			for i := range b.Backend.(*Processor).X {
				b.Backend.(*Processor).X[i] = float32(i%7) - 3
			}
			step := func() { b.Through(w) }
			step()
			if n := testing.AllocsPerRun(200, step); n != 0 {
				t.Errorf("%v, experts %v, %d sequences: %v allocations per layer and step", dt, w.Experts != nil, sequences, n)
			}
			for _, s := range segments {
				s.Cache.(OwnedCache).Release()
			}
		}
		w.Close()
	}
}

func randomMatrix(t testing.TB, dt tensor.DType, rows, cols int) *tensor.Weight {
	t.Helper()
	m, err := tensor.NewWeight(dt, rows, cols)
	if err != nil {
		t.Fatal(err)
	}
	randomRows(m, 0)
	return m
}

func randomRows(m *tensor.Weight, seed int) {
	row := make([]float32, m.Cols)
	for r := range m.Rows {
		for i := range row {
			row[i] = float32((seed*5+r*31+i*7)%13-6) / 64
		}
		m.SetRow(r, row)
	}
}

func randomExperts(t testing.TB, d Dims, dt tensor.DType) *experts.Weights {
	t.Helper()
	bank := func(rows, cols int) *tensor.Bank {
		b, err := tensor.NewBank(dt, d.MoE.Experts, rows, cols)
		if err != nil {
			t.Fatal(err)
		}
		for e := range d.MoE.Experts {
			randomRows(b.At(e), e)
		}
		return b
	}
	return &experts.Weights{Router: randomMatrix(t, tensor.F32, d.MoE.Experts, d.Hidden), Bias: make([]float32, d.MoE.Experts),
		Gate: bank(d.MoE.FFN, d.Hidden), Up: bank(d.MoE.FFN, d.Hidden), Down: bank(d.Hidden, d.MoE.FFN),
		SharedGate: randomMatrix(t, dt, d.MoE.Shared, d.Hidden), SharedUp: randomMatrix(t, dt, d.MoE.Shared, d.Hidden),
		SharedDown: randomMatrix(t, dt, d.Hidden, d.MoE.Shared)}
}

func randomWeights(t testing.TB, d Dims, dt tensor.DType) *Weights {
	t.Helper()
	matrix := func(rows, cols int) *tensor.Weight { return randomMatrix(t, dt, rows, cols) }
	ones := make([]float32, d.Hidden)
	for i := range ones {
		ones[i] = 1
	}
	return &Weights{Q: matrix(d.qCols(), d.Hidden), K: matrix(d.kCols(), d.Hidden),
		V: matrix(d.kCols(), d.Hidden), O: matrix(d.Hidden, d.qCols()),
		Gate: matrix(d.FFN, d.Hidden), Up: matrix(d.FFN, d.Hidden), Down: matrix(d.Hidden, d.FFN), AttnNorm: ones, FFNNorm: ones}
}

// filled returns a store with n tokens and reserved space for one more.
func filled(t testing.TB, a *memory.Arena, d Dims, l tensor.KVLayout, n int) *kvcache.Store {
	t.Helper()
	s := kvcache.NewPrefill(a, kvcache.Geometry{Layers: 1, KVHeads: d.KVHeads, Group: d.group(), Layout: l}, tensor.Span{Lo: 0, Hi: d.KVHeads})
	if err := s.Reserve(n); err != nil {
		t.Fatal(err)
	}
	k := make([]float32, d.HeadDim)
	for pos := range n {
		for head := range d.KVHeads {
			k[0] = float32(pos%9) - 4
			s.Write(0, head, pos, k, k)
		}
	}
	s.Commit(n)
	if err := s.Reserve(n + 1); err != nil {
		t.Fatal(err)
	}
	return s
}
