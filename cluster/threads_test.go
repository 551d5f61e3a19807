package cluster

import (
	"fmt"
	"sync"
	"testing"

	"github.com/shoal-llm/shoal/internal/server/engine"
)

// Decode steps try several thread counts until one is chosen. The answers do not change meanwhile.
func TestThreadsOfSteps(t *testing.T) {
	const tokens = 120
	ask := func(e *Local, i int) replied {
		return complete(t, e, &engine.Request{ID: fmt.Sprint("q", i), Prompt: text(i, 70), MaxTokens: tokens})
	}
	alone := startLocal(t, LocalConfig{Threads: 1, Serve: ServeConfig{Model: goldenDir}})
	want := make([]replied, 3)
	for i := range want {
		want[i] = ask(alone, i)
	}
	if n := alone.StepTotals().ThreadShift; n != 0 {
		t.Errorf("one thread has a shift of %d", n)
	}
	for _, sockets := range []int{1, 3} {
		for _, steps := range []int{1, 8} {
			t.Run(fmt.Sprintf("%d sockets, %d steps", sockets, steps), func(t *testing.T) {
				e := startLocal(t,
					LocalConfig{Sockets: sockets, Threads: 4, fewest: 1, Serve: ServeConfig{Model: goldenDir, DecodeSteps: steps, Speculate: "off"}})
				var all sync.WaitGroup
				for i := range want {
					all.Go(func() {
						if ask(e, i).bits != want[i].bits {
							t.Errorf("request %d: another answer", i)
						}
					})
				}
				all.Wait()
				for round := 0; round < 100; round++ {
					if ask(e, 0).bits != want[0].bits {
						t.Error("another answer")
					}
					if !e.Cluster().TryingThreads {
						break
					}
				}
				s := e.Cluster()
				if s.TryingThreads || e.StepTotals().ThreadShift < 10 {
					t.Errorf("no number of threads is chosen after shifts of %d in all", e.StepTotals().ThreadShift)
				}
				for _, n := range s.Nodes {
					if n.Threads != 4 && n.Threads != 2 && n.Threads != 1 {
						t.Errorf("%s: %d threads", n.ID, n.Threads)
					}
				}
			})
		}
	}
}
