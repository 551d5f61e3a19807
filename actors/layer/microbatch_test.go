package layer

import (
	"fmt"
	"io"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/shoal-llm/shoal/actors/layer/executor"
	"github.com/shoal-llm/shoal/actors/layer/rotation"
	"github.com/shoal-llm/shoal/collective"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// sockets are the layers and groups of several ranks in this process.
type sockets struct {
	t     *testing.T
	d     Dims
	place topology.Placement
	pool  *tensor.Pool
	arena *memory.Arena
	sys   *actor.ActorSystem
	execs []*executor.Executor
	first []*actor.PID // first layer of each rank
	nets  []*collective.Group
	open  []*kvcache.Store
}

const testLayers = 3

func newSockets(t *testing.T, m topology.Mapping, ranks int, dt tensor.DType) *sockets {
	t.Helper()
	d := Dims{Hidden: 64, Heads: 4, KVHeads: 2, HeadDim: 16, FFN: 128, NormEps: 1e-5}
	place, err := topology.Place(1, m,
		topology.Shape{Hidden: d.Hidden, Heads: d.Heads, KVHeads: d.KVHeads, HeadDim: d.HeadDim, FFN: d.FFN, Vocab: 64,
			FFNUnits: tensor.Units(d.FFN), FFNUnitStart: func(u int) int { return tensor.UnitsSpan(d.FFN, 0, u).Hi }},
		make([]topology.Member, ranks))
	if err != nil {
		t.Fatal(err)
	}
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	s := &sockets{t: t, d: d, place: place, pool: tensor.NewPool(1), arena: memory.NewArena(64 << 20),
		sys: actor.NewActorSystem(actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger { return quiet }))}
	t.Cleanup(func() {
		for _, c := range s.open {
			c.Release()
		}
		s.sys.Shutdown()
		s.arena.Close()
		s.pool.Close()
	})
	wires := collective.NewMemory(ranks)
	for rank := range ranks {
		exec, next, layers := executor.New(), []*actor.PID(nil), []Layer(nil)
		for i := testLayers - 1; i >= 0; i-- {
			layers = append([]Layer{s.slice(i, rank, dt)}, layers...)
			a := &Actor{Layers: layers, Next: next, Term: exec.NewTerm()}
			pid := s.sys.Root.Spawn(actor.PropsFromProducer(func() actor.Actor { return a }, actor.WithDispatcher(Dispatcher)))
			next = append([]*actor.PID{pid}, next...)
			t.Cleanup(layers[0].Close)
		}
		g, err := collective.NewGroup(collective.Config{Rank: rank, Size: ranks, Epoch: 1,
			Incarnations: make([]uint32, ranks), Deadline: time.Minute}, wires[rank])
		if err != nil {
			t.Fatal(err)
		}
		s.execs, s.first, s.nets = append(s.execs, exec), append(s.first, next[0]), append(s.nets, g)
		t.Cleanup(func() { g.Close(); <-g.Done(); exec.Close() })
	}
	return s
}

// slice returns a rank's slice of a layer. Each element is a function of its place in the whole matrix.
func (s *sockets) slice(layer, rank int, dt tensor.DType) *Weights {
	d, me := s.d, s.place.Slices[rank]
	all := func(n int) topology.Range { return topology.Range{Lo: 0, Hi: n} }
	matrix := func(seed int, rows topology.Range, cols int, units topology.Range) *tensor.Weight {
		if rows.Len() == 0 || units.Len() == 0 {
			return nil
		}
		w, err := tensor.NewWeightUnits(dt, rows.Len(), cols, units.Lo, units.Hi)
		if err != nil {
			s.t.Fatal(err)
		}
		row := make([]float32, w.Span().Hi-w.Span().Lo)
		for r := range rows.Len() {
			for i := range row {
				row[i] = float32(((seed+layer)*5+(rows.Lo+r)*31+(w.Span().Lo+i)*(rows.Lo+r+3))%13-6) / 64
			}
			w.SetRow(r, row)
		}
		return w
	}
	hidden, attn, ffn := all(tensor.Units(d.Hidden)), all(tensor.Units(d.qCols())), all(tensor.Units(d.FFN))
	ones := slices.Repeat([]float32{1}, d.Hidden)
	w := &Weights{Index: layer, AttnNorm: ones, FFNNorm: ones}
	q, k, out, down := me.Q, me.K, me.Out, me.Down
	if s.place.Mapping == topology.Reduce {
		q, k, out, down, ffn = all(d.qCols()), all(d.kCols()), all(d.Hidden), all(d.Hidden), me.FFNUnits
	}
	w.Q, w.K, w.V, w.O = matrix(1, q, d.Hidden, hidden), matrix(2, k, d.Hidden, hidden),
		matrix(3, k, d.Hidden, hidden), matrix(4, out, d.qCols(), attn)
	w.Gate, w.Up, w.Down = matrix(5, me.FFN, d.Hidden, hidden), matrix(6, me.FFN, d.Hidden, hidden), matrix(7, down, d.FFN, ffn)
	return w
}

// step returns a micro-batch for every rank: one decode sequence per rank, numbered from seed, and a
// sequence that reads `prompt` tokens of its prompt.
func (s *sockets) step(number uint8, seed, prompt int, dt tensor.DType) []*Batch {
	layout := tensor.KVLayout{Type: tensor.F32, KDim: s.d.HeadDim, VDim: s.d.HeadDim}
	g := kvcache.Geometry{Layers: testLayers, KVHeads: s.d.KVHeads, Group: s.d.group(), Layout: layout}
	var out []*Batch
	for rank, me := range s.place.Slices {
		open := func(heads tensor.Span, have, more int) Cache {
			c := kvcache.NewPrefill(s.arena, g, heads)
			reserve := func(n int) {
				if err := c.Reserve(n); err != nil {
					s.t.Fatal(err)
				}
			}
			reserve(have)
			row := make([]float32, s.d.HeadDim)
			for layer := range testLayers {
				for head := heads.Lo; head < heads.Hi; head++ {
					for pos := range have {
						for i := range row {
							row[i] = float32((seed*3+layer*5+head*7+pos*11+i*13)%17-8) / 8
						}
						c.Write(layer, head, pos, row, row)
					}
				}
			}
			c.Commit(have)
			reserve(have + more)
			s.open = append(s.open, c)
			return OwnedCache{c, tensor.Score{Scale: 0.2}, nil}
		}
		var segments []Segment
		for owner := seed % 2; owner < len(s.place.Slices); owner++ {
			segment := Segment{Seq: uint64(owner + 1), N: 1, Start: 20 + seed, Owner: owner}
			if owner == rank {
				segment.Cache = open(tensor.Span{Lo: 0, Hi: s.d.KVHeads}, segment.Start, 1)
			}
			segments = append(segments, segment)
		}
		if prompt > 0 {
			segments = append(segments,
				Segment{Seq: 100, N: prompt, Prefill: true, Cache: open(tensor.Span{Lo: me.KVHeads.Lo, Hi: me.KVHeads.Hi}, 0, prompt)})
		}
		b := newBatch(s.d, 64, layout, s.pool)
		b.Type, b.MicroBatch = dt, number
		angles := make([]float64, s.d.HeadDim/2)
		for i := range angles {
			angles[i] = float64(i+1) / 8
		}
		if err := b.Reset(s.place, rank, segments, rotation.New(angles, 1)); err != nil {
			s.t.Fatal(err)
		}
		for i := range b.T * s.d.Hidden {
			b.Backend.(*Processor).X[i] = float32((seed*7+i*29)%31-15) / 16
		}
		out = append(out, b)
	}
	return out
}

// run sends steps through the layers of all ranks concurrently.
func (s *sockets) run(steps ...[]*Batch) {
	s.t.Helper()
	done := make(chan *Done, len(steps)*len(s.execs))
	end := s.sys.Root.Spawn(actor.PropsFromFunc(func(c actor.Context) {
		if d, ok := c.Message().(*Done); ok {
			done <- d
		}
	}))
	begin := make(chan struct{})
	for rank, exec := range s.execs {
		exec.Submit(func() { <-begin }) // blocks the executor until all steps are queued, so that their jobs alternate
		for _, step := range steps {
			s.sys.Root.Send(s.first[rank], &Run{Batch: step[rank], Group: s.nets[rank], ReplyTo: end})
		}
	}
	close(begin)
	for range len(steps) * len(s.execs) {
		select {
		case d := <-done:
			if d.Err != nil {
				s.t.Fatal(d.Err)
			}
		case <-time.After(time.Minute):
			s.t.Fatal("a step did not complete within its deadline")
		}
	}
}

// TestMicroBatches runs two steps through the layers of several ranks concurrently: one computes while
// the other exchanges. The results must have the bits of sequential steps.
func TestMicroBatches(t *testing.T) {
	for _, m := range topology.Mappings {
		for _, dt := range []tensor.DType{tensor.F32, tensor.Q8_0} {
			for _, prompt := range []int{0, 5, 40} { // next to a decode-only step
				t.Run(fmt.Sprint(m, dt, prompt), func(t *testing.T) {
					s := newSockets(t, m, 3, dt)
					want := [][]*Batch{s.step(0, 1, 0, dt), s.step(0, 2, prompt, dt)}
					for _, step := range want {
						for rank, b := range step {
							b.sequence = want[0][rank].sequence // the second step of a micro-batch continues its collectives' numbers
						}
						s.run(step)
					}
					s = newSockets(t, m, 3, dt)
					got := [][]*Batch{s.step(0, 1, 0, dt), s.step(1, 2, prompt, dt)}
					s.run(got...)
					for i := range want {
						for rank := range want[i] {
							n := want[i][rank].T * s.d.Hidden
							if !slices.Equal(want[i][rank].Backend.(*Processor).X[:n], got[i][rank].Backend.(*Processor).X[:n]) ||
								!slices.Equal(want[i][0].Backend.(*Processor).X[:n], want[i][rank].Backend.(*Processor).X[:n]) {
								t.Errorf("step %d, rank %d: results differ from a sequential run, or from rank 0", i, rank)
							}
						}
					}
				})
			}
		}
	}
}
