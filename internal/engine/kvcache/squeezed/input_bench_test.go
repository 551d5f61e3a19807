package squeezed

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvcachetest"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// BenchmarkInput measures one KV head of the 1B shape for an input of 256 tokens after a context of 16,384: go
// test ./internal/engine/kvcache/squeezed -run none -bench Input -benchtime 40x. Tokens select and attend one by
// one, and in tasks of 32; full reads every token. Times are the least of all rounds, per token. Keys and
// queries are near common centers, and shorter queries have flatter attention, so they read more.
func BenchmarkInput(b *testing.B) {
	for _, length := range []float32{1, 0.5} {
		b.Run(fmt.Sprint("length=", length), func(b *testing.B) { benchmarkInput(b, length) })
	}
}

func benchmarkInput(b *testing.B, length float32) {
	const context, input, task, group, width = 16384, 256, 32, 4, 64
	l, score := tensor.KVLayout{Type: tensor.BF16, KDim: width, VDim: width}, tensor.Score{Scale: 0.125}
	g := kvcache.Geometry{Layers: 1, KVHeads: 1, Group: group, Layout: l}
	r := rand.New(rand.NewPCG(1, 2))
	normal := func(n int, spread float64) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(spread * r.NormFloat64())
		}
		return x
	}
	centers := normal(300*width, 1)
	near := func(spread float64) []float32 {
		x := normal(width, spread)
		tensor.Add(x, centers[r.IntN(300)*width:][:width])
		return x
	}
	arena := memory.NewArena(1 << 30)
	defer arena.Close()
	check := func(err error) {
		if err != nil {
			b.Fatal(err)
		}
	}
	prompt := kvcache.NewPrefill(arena, g, tensor.Span{Lo: 0, Hi: 1})
	check(prompt.Reserve(context))
	for pos := range context {
		prompt.Write(0, 0, pos, near(1), near(1))
	}
	prompt.Commit(context)
	var queries []float32
	for range input * group {
		queries = append(queries, near(2)...)
	}
	tensor.Scale(queries, length)
	p := Method.Of(50, 1, 900, 64, 100, 8192)
	seen := kvcachetest.Statistics(prompt, 0, 0)
	seen.Score, seen.Queries = score, queries[:100*group*width]
	s := kvcache.NewStore(arena, g, p)
	defer s.Release()
	s.Score = score
	check(s.Open(context, context, tensor.Span{}))
	check(s.Keep(prompt, 0, 0, p.Keep(seen)))
	check(s.KeepQueries(seen))
	prompt.Release()
	check(s.Seal())
	check(s.Reserve(context + input))
	for pos := context; pos < context+input; pos++ {
		s.Write(0, 0, pos, near(1), near(1))
	}

	const ld = group * width
	sc, out, read := new(tensor.AttnScratch), make([]float32, input*ld), 0
	masks := func(i int) [][]uint64 { return s.Masks(0, 0, context+i, task, queries[i*ld:], ld, score, sc) }
	for i := 0; i < input; i += task {
		for _, mask := range masks(i) {
			for _, word := range mask {
				read += bits.OnesCount64(word)
			}
		}
	}
	b.ReportMetric(float64(read)/input, "slots")
	for _, way := range []struct {
		name string
		rows int
		do   func(i int)
	}{
		{"one", 1, func(i int) {
			blocks, n, valid := s.View(0, 0, context+i, queries[i*ld:][:ld], score, nil, sc)
			tensor.Attend(out[i*ld:], queries[i*ld:], group, score, l, blocks, n, valid, sc)
		}},
		{"together", task, func(i int) {
			tensor.AttendChosen(out[i*ld:], ld, queries[i*ld:], ld, group, score, l, s.Blocks(0, 0), masks(i), sc)
		}},
		{"select", task, func(i int) { masks(i) }},
		{"full", 16, func(i int) {
			tensor.AttendCausal(out[i*ld:], ld, queries[i*ld:], ld, 16, context+i, 0, group, score, l, s.Blocks(0, 0), sc)
		}},
	} {
		least, sum := make([]time.Duration, input/way.rows), time.Duration(0)
		for round := range b.N {
			for i := range least {
				began := time.Now()
				way.do(i * way.rows)
				if took := time.Since(began); round == 0 || took < least[i] {
					least[i] = took
				}
			}
		}
		for _, t := range least {
			sum += t
		}
		b.ReportMetric(float64(sum.Nanoseconds())/1e3/input, way.name+"-us")
	}
}
