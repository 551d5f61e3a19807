package tensor

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/tensor/workers"
	"github.com/shoal-llm/shoal/internal/testutil"
)

// Threads yield to goroutines only if they may occupy all of Go's Ps.
func TestFillProcessors(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))
	looking := func(want int32) {
		t.Helper()
		testutil.Eventually(t, time.Minute, "threads that look for work", func() (bool, string) {
			n := workers.Spinning.Load()
			return n == want, fmt.Sprintf("%d, want %d", n, want)
		})
	}
	looking(0) // threads of closed pools do not count
	p := NewPool(6)
	defer p.Close()
	p.Run(6, func(int) {})
	looking(0) // nor do those that have found no work for long
	workers.Spinning.Add(3)
	defer workers.Spinning.Add(-3)
	if workers.AllProcsBusy() {
		t.Error("three threads fill 4 processors")
	}
	workers.Spinning.Add(1)
	if !workers.AllProcsBusy() {
		t.Error("four do not")
	}
	workers.Spinning.Add(-1)
	runtime.GOMAXPROCS(3)
	if p.SetThreads(2); !workers.AllProcsBusy() {
		t.Error("three do not fill 3 processors")
	}
	p.Close()
	looking(3)
}
