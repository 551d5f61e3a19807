package workers_test

import (
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/engine/tensor/workers"
)

// While a goroutine polls, a goroutine that is queued at a spinning thread's P runs before that
// thread parks.
func TestWaiterAtAThreadsP(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	p := tensor.NewPool(2)
	defer p.Close()
	var took []time.Duration
	for range 50 {
		var ran, started atomic.Bool
		p.Run(2, func(i int) {
			if i == 1 {
				go ran.Store(true)
				started.Store(true)
			}
			for !started.Load() { // the pool's thread has that task, not the caller
			}
		})
		var w workers.Waiter
		began := time.Now()
		if w.Wait(ran.Load); !w.Contended() {
			took = append(took, time.Since(began))
		}
	}
	if len(took) < 25 {
		t.Skip("others used this processor most of the time")
	}
	if slices.Sort(took); took[len(took)/2] > workers.LingerFor/2 {
		t.Errorf("a goroutine at a waiting thread's P ran after %v", took[len(took)/2])
	}
}
