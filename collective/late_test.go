package collective

import (
	"testing"
	"time"
)

// TestLate: a rank that waits counts the time against the late rank. A rank that was stopped while
// it waited does not blame its own pause on the other.
func TestLate(t *testing.T) {
	const wait, pause = 150 * time.Millisecond, 300 * time.Millisecond
	late := func(stopped bool) time.Duration {
		gs := memoryGroups(t, 2, Config{Deadline: time.Minute})
		done := make(chan error, 2)
		id := Op(0, 1)
		gs[0].Barrier(id, func(err error) { done <- err })
		if stopped { // as if neither timer nor messages were handled for that time
			g := gs[0]
			g.mu.Lock()
			g.timer.Stop()
			g.armed, g.lastClock = true, time.Now().Add(-pause)
			g.mu.Unlock()
		} else {
			time.Sleep(wait)
		}
		gs[1].Barrier(id, func(err error) { done <- err })
		for range 2 {
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
		return gs[0].Late()[1]
	}
	if got := late(false); got < wait/3 { // on a starved machine less is counted
		t.Errorf("a wait of %v counts %v", wait, got)
	}
	if got := late(true); got > 3*20*time.Millisecond {
		t.Errorf("a pause of %v counts %v", pause, got)
	}
}
