package cluster_test

import (
	"runtime"
	"sync"
	"testing"
	"time"
)

// TestProcessesOutliveThreads: a spawned process survives the end of threads of this process, such
// as those of a wire's ports.
func TestProcessesOutliveThreads(t *testing.T) {
	var all []*process
	for range 4 {
		all = append(all, spawn(t, "sleep", "sleep", nil, "600"))
		// The thread that spawned it is now likely to be reused by one of these goroutines, and
		// ends with it.
		var threads sync.WaitGroup
		for range 8 {
			threads.Go(func() {
				runtime.LockOSThread() // never unlocked
				time.Sleep(time.Millisecond)
			})
		}
		threads.Wait()
	}
	for i, p := range all {
		select {
		case <-p.done:
			t.Errorf("process %d was ended: %v", i, p.code)
		case <-time.After(50 * time.Millisecond):
		}
	}
}
