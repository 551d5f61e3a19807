package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/actors/layer/rotation"
	"github.com/shoal-llm/shoal/actors/socket/shard"
	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	kvmemory "github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// cacheWay is one implementation of the cache.
type cacheWay struct {
	Name     string
	BestMS   float64
	MedianMS float64
	Speedup  float64 // compared with shift-and-append of the same positions, fastest steps
	Median   float64 // compared by median steps
	CacheMB  float64
	base     int
}

// stream is the cache of one sequence, through the interface of the layers.
type stream interface {
	layer.Cache
	begin(pos int) error
	end()
	bytes() int64
}

// runCacheDecode compares whole decode steps of a model (all layers and the head) that differ only
// in how the cache of StreamingLLM is kept: figures 7 to 9 of EQUIP. It measures o.Tokens steps of
// every way in turn, so that other load disturbs all equally. Caches hold o.Context slots.
func runCacheDecode(ctx context.Context, o Options) (out []cacheWay, err error) {
	ck, err := checkpoint.Random(o.Model)
	if err != nil {
		return nil, err
	}
	defer ck.Close()
	c := &ck.Config
	if o.KV != tensor.F32 && o.KV != tensor.BF16 {
		return nil, fmt.Errorf("bench: the shift-and-append cache is made for f32 and bf16, not %v", o.KV)
	}
	pool := tensor.NewPool(o.Threads)
	defer pool.Close()
	place, err := topology.Place(1, topology.Gather, shard.ShapeOf(c), []topology.Member{{ID: "bench"}})
	if err != nil {
		return nil, err
	}
	w, err := shard.Load(ctx, ck, place, 0, o.Weights, shard.Options{Pool: pool})
	if err != nil {
		return nil, err
	}
	defer w.Close()
	g := shard.GeometryOf(c, o.KV)
	l := g.Layout
	rope := rotation.TablesOf(c)[0]
	rope.Until(o.Context + o.Tokens + warmSteps)
	policy := kvcache.Streaming(cacheSink, o.Context-cacheSink)
	ways := []struct {
		name string
		base int // index of the baseline
		make func(a *kvmemory.Arena) (stream, error)
	}{
		{"original positions, shift-and-append", 0, func(*kvmemory.Arena) (stream, error) { return newShifted(g, o.Context, nil), nil }},
		{"original positions, in place", 0, func(a *kvmemory.Arena) (stream, error) { return newRing(a, g, policy, rope) }},
		{"cache positions, shift-and-append, all keys rotated", 2,
			func(*kvmemory.Arena) (stream, error) { return newShifted(g, o.Context, rope), nil }},
		{"cache positions, in place, all keys rotated",
			2, func(a *kvmemory.Arena) (stream, error) { return newTurning(a, g, policy, rope, false) }},
		{"cache positions, in place, all keys rotated, rotate-half cache", 2,
			func(a *kvmemory.Arena) (stream, error) { return newTurning(a, g, policy, rope, true) }},
		{"cache positions, in place, indices from the newest", 2, func(a *kvmemory.Arena) (stream, error) {
			return newRing(a, g, policy.AtCachePositions(false), rope)
		}},
		{"cache positions, in place, indices from the newest, rotate-half cache", 2, func(a *kvmemory.Arena) (stream, error) {
			return newRing(a, g, policy.AtCachePositions(true), rope)
		}},
	}
	arena := kvmemory.NewArena(1 << 40)
	defer arena.Close()
	streams, took := make([][]stream, len(ways)), make([][]time.Duration, len(ways))
	for i, way := range ways {
		out = append(out, cacheWay{Name: way.name, base: way.base})
		for range o.Batch {
			s, err := way.make(arena)
			if err != nil {
				return nil, err
			}
			streams[i] = append(streams[i], s)
			out[i].CacheMB += float64(s.bytes()) / 1e6
		}
	}
	m := &decoder{w: w, place: place,
		batch: layer.NewBatch(layer.DimsOf(c), o.Batch, layer.NewProcessor(layer.DimsOf(c), o.Batch, l, pool)), rope: rope}
	for row := range o.Batch {
		m.rows = append(m.rows, layer.LogitRow{Row: row, Whole: true})
	}
	for step := range o.Tokens + warmSteps {
		for i := range ways {
			if err := context.Cause(ctx); err != nil {
				return nil, err
			}
			t, err := m.step(streams[i], o.Context+step)
			if err != nil {
				return nil, err
			}
			if step >= warmSteps {
				took[i] = append(took[i], t)
			}
		}
	}
	for i := range ways {
		slices.Sort(took[i])
		out[i].BestMS, out[i].MedianMS = ms(took[i][0]), ms(took[i][len(took[i])/2])
	}
	for i := range out {
		base := out[out[i].base]
		out[i].Speedup, out[i].Median = base.BestMS/out[i].BestMS, base.MedianMS/out[i].MedianMS
	}
	return out, nil
}

// BenchmarkCacheDecode prints the step times that docs/caches.md quotes.
func BenchmarkCacheDecode(b *testing.B) {
	fmt.Println(ThisMachine())
	for _, o := range []Options{{Model: "fry", Batch: 4, Context: 512}, {Model: "bench160m", Batch: 8, Context: 1024}} {
		o.Weights, o.KV, o.Threads, o.Tokens = tensor.Q8_0, tensor.BF16, runtime.GOMAXPROCS(0), 24
		ways, err := runCacheDecode(b.Context(), o)
		if err != nil {
			b.Fatal(err)
		}
		fmt.Printf("%-72s %9s %9s %7s %7s %9s\n", fmt.Sprintf("%s, batch %d, %d slots", o.Model, o.Batch, o.Context),
			"best ms", "median", "x", "median", "cache MB")
		for _, w := range ways {
			fmt.Printf("%-72s %9.2f %9.2f %7.2f %7.2f %9.1f\n", w.Name, w.BestMS, w.MedianMS, w.Speedup, w.Median, w.CacheMB)
		}
	}
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }

// decoder is a model without actors: its layers and head.
type decoder struct {
	w     *shard.Weights
	place topology.Placement
	batch *layer.Batch
	rope  *rotation.Table
	rows  []layer.LogitRow // all rows
}

func (m *decoder) step(streams []stream, pos int) (time.Duration, error) {
	segments := make([]layer.Segment, len(streams))
	for i, s := range streams {
		segments[i] = layer.Segment{Seq: uint64(i + 1), Cache: s, N: 1, Start: pos}
	}
	randomRow(rand.New(rand.NewPCG(uint64(pos), 3)), m.batch.Backend.(*layer.Processor).X)
	began := time.Now()
	for _, s := range streams {
		if err := s.begin(pos); err != nil {
			return 0, err
		}
	}
	b := m.batch
	if err := b.Reset(m.place, 0, segments, m.rope); err != nil {
		return 0, err
	}
	for _, w := range m.w.Layers {
		b.Through(w)
	}
	b.Backend.Logits(m.w.Ends, m.rows)
	for _, s := range streams {
		s.end()
	}
	return time.Since(began), nil
}
