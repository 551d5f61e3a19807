package tensor

import (
	"runtime"
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestPoolRunsEveryTaskOnce(t *testing.T) {
	for _, threads := range []int{1, 2, 5} {
		p := NewPool(threads)
		if p.Threads() != threads {
			t.Fatalf("%d threads, want %d", p.Threads(), threads)
		}
		for n := range 200 {
			seen := make([]atomic.Int32, n)
			p.Run(n, func(i int) { seen[i].Add(1) })
			for i := range seen {
				if seen[i].Load() != 1 {
					t.Fatalf("task %d of %d ran %d times", i, n, seen[i].Load())
				}
			}
			if n%50 == 0 {
				time.Sleep(time.Millisecond) // let the workers park
			}
		}
		p.Close()
		p.Close()
		ran := 0
		p.Run(3, func(int) { ran++ })
		if ran != 3 {
			t.Error("a closed pool does not run")
		}
	}
}

// Threads that a Run does not use get no task, and park while the others work.
func TestPoolUses(t *testing.T) {
	const all = 5
	p := NewPool(all)
	defer p.Close()
	for round, use := range []int{2, all, 1, 3, 4, 2, 9, 0} {
		p.SetThreads(use)
		use = max(1, min(use, all))
		if p.Threads() != use {
			t.Fatalf("%d threads, want %d", p.Threads(), use)
		}
		parked := func() bool {
			for _, w := range p.workers[use-1:] {
				if !w.parked.Load() {
					return false
				}
			}
			return true
		}
		seen := make([]atomic.Int32, all)
		for began := time.Now(); ; {
			ran := make([]atomic.Int32, 200)
			p.mu.Lock()
			p.dispatch(len(ran), func(worker, i int) {
				seen[worker].Add(1)
				if ran[i].Add(1); i%50 == 0 {
					time.Sleep(100 * time.Microsecond) // other threads find tasks
				}
			})
			p.mu.Unlock()
			for i := range ran {
				if ran[i].Load() != 1 {
					t.Fatalf("round %d: task %d ran %d times", round, i, ran[i].Load())
				}
			}
			if seen[use-1].Load() > 0 && parked() {
				break
			}
			if time.Since(began) > time.Minute {
				t.Fatalf("round %d of %d threads: they did %v tasks; parked: %v", round, use, seen, parked())
			}
		}
		for id := use; id < all; id++ {
			if n := seen[id].Load(); n > 0 {
				t.Errorf("round %d: thread %d of %d did %d tasks", round, id, use, n)
			}
		}
	}
}

func TestPoolServesConcurrentCallers(t *testing.T) {
	p := NewPool(3)
	defer p.Close()
	var total atomic.Int64
	var callers sync.WaitGroup
	for range 8 {
		callers.Add(1)
		go func() {
			defer callers.Done()
			for range 100 {
				p.Run(7, func(i int) { total.Add(int64(i)) })
			}
		}()
	}
	callers.Wait()
	if total.Load() != 8*100*21 {
		t.Errorf("sum %d", total.Load())
	}
}

func TestPoolWaitsForSlowWorkers(t *testing.T) {
	p := NewPool(2)
	defer p.Close()
	for range 20 {
		var done atomic.Int32
		p.Run(2, func(i int) {
			time.Sleep(200 * time.Microsecond * time.Duration(i))
			done.Add(1)
		})
		if done.Load() != 2 {
			t.Fatal("Run returned before its tasks")
		}
	}
}

// Assembly cannot be preempted. A collection must still get in between the calls of a goroutine
// that only multiplies.
func TestCollectorIsNotHeldUp(t *testing.T) {
	p := NewPool(1)
	defer p.Close()
	const rows, k, n = 256, 4096, 64
	w := newWeight(t, BF16, make([]float32, rows*k), rows, k, 0, Units(k))
	x, y := make([]float32, n*k), make([]float32, n*rows)
	var stop atomic.Bool
	var worker sync.WaitGroup
	worker.Add(1)
	go func() {
		defer worker.Done()
		for !stop.Load() {
			p.MatMul(y, rows, w, x, k, n)
		}
	}()
	const collections = 9
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		// The median, because a loaded machine may take the CPU away now and then. Repeated,
		// because it may do so often. Kernels that block the collector block it in every round.
		for begun := time.Now(); ; {
			median, stops := medianStop(collections)
			if stops < collections {
				t.Errorf("%d stops of the world in %d collections", stops, collections)
			}
			if median <= 0.010 {
				return
			}
			if time.Since(begun) > time.Minute {
				t.Errorf("half of %d stops of the world waited %v s or more for the kernels, want at most 0.01", stops, median)
				return
			}
		}
	}()
	select {
	case <-ended:
	case <-time.After(3 * time.Minute):
		t.Error("nine collections took more than a minute")
	}
	stop.Store(true)
	worker.Wait()
	<-ended
}

// medianStop is the median of the collector's waits in n collections, as a lower bound.
func medianStop(n int) (seconds float64, stops uint64) {
	before := stopping()
	for range n {
		runtime.GC()
	}
	after, seen := stopping(), uint64(0)
	for i, n := range after.Counts {
		stops += n - before.Counts[i]
	}
	for i, n := range after.Counts {
		if seen += n - before.Counts[i]; 2*seen > stops {
			return after.Buckets[i], stops
		}
	}
	return 0, stops
}

// stopping is a histogram of how long the collector has waited for goroutines to stop.
func stopping() *metrics.Float64Histogram {
	s := []metrics.Sample{{Name: "/sched/pauses/stopping/gc:seconds"}}
	metrics.Read(s)
	return s[0].Value.Float64Histogram()
}
