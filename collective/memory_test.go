package collective

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// memoryGroups starts n groups over the memory transport, closed with the test.
func memoryGroups(t testing.TB, n int, cfg Config) []*Group {
	t.Helper()
	if cfg.Deadline == 0 {
		cfg.Deadline = 2 * time.Minute // a rank may be starved
	}
	gs := make([]*Group, n)
	for r, tr := range NewMemory(n) {
		c := cfg
		c.Rank, c.Size, c.Epoch = r, n, 1
		g, err := NewGroup(c, tr)
		if err != nil {
			t.Fatal(err)
		}
		gs[r] = g
	}
	t.Cleanup(func() {
		for _, g := range gs {
			g.Close()
		}
		for _, g := range gs {
			<-g.Done()
		}
	})
	return gs
}

func TestMemoryManyLanes(t *testing.T) {
	for _, n := range []int{1, 2, 3, 8} {
		r := rand.New(rand.NewPCG(1, uint64(n)))
		gs := memoryGroups(t, n, Config{ChunkBytes: 4096, OneShotBytes: 8000})
		var all sync.WaitGroup
		const batches, ops = 3, 12
		var programs [batches][]program
		for batch := range batches {
			for i := range ops {
				programs[batch] = append(programs[batch], randomProgram(Op(uint8(batch), uint64(i+1)), r, n, 3000))
			}
		}
		for k, g := range gs {
			for batch := range batches {
				all.Go(func() {
					for _, p := range programs[batch] {
						res := make(chan error, 1)
						p.start(g, k, func(err error) { res <- err })
						if err := <-res; err != nil {
							t.Errorf("rank %d, %s (op %v): %v", k, p.what, p.id, err)
							return
						}
						if err := p.check(k); err != nil {
							t.Errorf("%s (op %v): %v", p.what, p.id, err)
						}
					}
				})
			}
		}
		all.Wait()
	}
}

// TestSteadyStateAllocations: an operation does not allocate once its buffers exist.
func TestSteadyStateAllocations(t *testing.T) {
	gs := memoryGroups(t, 3, Config{Deadline: time.Minute})
	run := stepper(gs, 2000)
	for range 50 {
		run()
	}
	if got := testing.AllocsPerRun(200, run); got > 3 {
		t.Errorf("%v allocations for 6 operations of 3 ranks, want next to none", got)
	}
}

// stepper returns a function that runs an all-gather and an all-reduce of n
// values on all groups.
func stepper(gs []*Group, n int) func() {
	size := len(gs)
	nodes := make([][]tensor.Span, size)
	mine := make([][][]float32, size)
	recv := make([][][]float32, size)
	out := make([][]float32, size)
	for k := range gs {
		nodes[k] = tensor.Subtrees(16*k/size, 16*(k+1)/size, 16)
		for range nodes[k] {
			mine[k] = append(mine[k], make([]float32, n))
		}
		for range gs {
			recv[k] = append(recv[k], make([]float32, n))
		}
		out[k] = make([]float32, n)
	}
	var seq uint64
	done := make(chan error, size)
	finish := func(err error) { done <- err }
	wait := func() {
		for range gs {
			if err := <-done; err != nil {
				panic(err)
			}
		}
	}
	return func() {
		seq++
		for k, g := range gs {
			g.AllGather(OpID(seq), mine[k][0], recv[k], finish)
		}
		wait()
		seq++
		for k, g := range gs {
			g.AllReduceTree(OpID(seq), 16, nodes, mine[k], out[k], finish)
		}
		wait()
	}
}

func BenchmarkMemoryStep(b *testing.B) {
	for _, n := range []int{256, 4096, 65536} {
		b.Run(map[int]string{256: "1K", 4096: "16K", 65536: "256K"}[n], func(b *testing.B) {
			run := stepper(memoryGroups(b, 4, Config{}), n)
			run()
			b.ReportAllocs()
			for b.Loop() {
				run()
			}
		})
	}
}
