package cluster_test

import (
	"runtime"
	"sync"
	"testing"
	"time"
)

// TestProcessesOutliveThreads: what spawn started goes on when threads of this process
// end, as those of a wire's ports do.
func TestProcessesOutliveThreads(t *testing.T) {
	var all []*process
	for range 4 {
		all = append(all, spawn(t, "sleep", "sleep", nil, "600"))
		// Whatever thread that was is now likely to be taken by one of these, and ends with it.
		var threads sync.WaitGroup
		for range 8 {
			threads.Go(func() {
				runtime.LockOSThread() // and never unlocked
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
