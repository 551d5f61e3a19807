package layer

import (
	"fmt"
	"io"
	"log/slog"
	"slices"
	"testing"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/shoal-llm/shoal/actors/layer/executor"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// BenchmarkStep decodes a token through small layers on one rank: in a loop, and through layer actors.
// The cost of 8 layers above that of 1 is compute in the loop, and compute and messages with actors.
func BenchmarkStep(b *testing.B) {
	d := Dims{Hidden: 64, Heads: 2, KVHeads: 1, HeadDim: 32, FFN: 64, NormEps: 1e-5}
	place, err := topology.Place(1, topology.Gather, topology.Shape{Hidden: d.Hidden, Heads: d.Heads, KVHeads: d.KVHeads, HeadDim: d.HeadDim,
		FFN: d.FFN, Vocab: 64, FFNUnits: tensor.Units(d.FFN), FFNUnitStart: func(u int) int { return tensor.UnitsSpan(d.FFN, 0, u).Hi }},
		[]topology.Member{{ID: "a"}})
	if err != nil {
		b.Fatal(err)
	}
	pool := tensor.NewPool(1)
	defer pool.Close()
	arena := memory.NewArena(64 << 20)
	defer arena.Close()
	layout := tensor.KVLayout{Type: tensor.BF16, KDim: d.HeadDim, VDim: d.HeadDim}
	w := randomWeights(b, d, tensor.Q8_0)
	defer w.Close()
	batch := newBatch(d, 1, layout, pool)
	store := filled(b, arena, d, layout, 20)
	defer store.Release()
	segments := []Segment{{Seq: 1, Cache: OwnedCache{store, tensor.Score{Scale: 0.2}, nil}, N: 1, Start: 20}}
	if err := batch.Reset(place, 0, segments); err != nil {
		b.Fatal(err)
	}
	for _, layers := range []int{1, 8} {
		b.Run(fmt.Sprintf("loop/%d", layers), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				for range layers {
					batch.Through(w)
				}
			}
		})
		b.Run(fmt.Sprintf("actors/%d", layers), func(b *testing.B) {
			quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
			sys := actor.NewActorSystem(actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger { return quiet }))
			exec := executor.New()
			term := exec.NewTerm()
			var next []*actor.PID
			all := slices.Repeat([]Layer{w}, layers)
			for i := range all {
				a := &Actor{Layers: all[len(all)-1-i:], Next: next, Term: term}
				pid := sys.Root.Spawn(actor.PropsFromProducer(func() actor.Actor { return a }, actor.WithDispatcher(Dispatcher)))
				next = append([]*actor.PID{pid}, next...)
			}
			done := make(chan struct{}, 1)
			end := sys.Root.Spawn(actor.PropsFromFunc(func(c actor.Context) {
				if _, ok := c.Message().(*Done); ok {
					done <- struct{}{}
				}
			}))
			run := &Run{Batch: batch, ReplyTo: end}
			b.ReportAllocs()
			for b.Loop() {
				sys.Root.Send(next[0], run)
				<-done
			}
			exec.Close()
			sys.Shutdown()
		})
	}
}
