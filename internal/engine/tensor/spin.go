package tensor

import (
	"runtime"
	"sync/atomic"
	"time"
)

// How an idle thread of a pool waits. Products of a step follow each other within
// microseconds, steps and exchanges within a millisecond or two, and a parked thread takes up
// to a hundred microseconds to wake: of 16 threads that parked sooner a third missed each
// product of what is served. Several processes may share these processors: so a thread that
// waits longer gives its own away again and again. If somebody took it for long, the thread
// parks, and does not linger for a while: the system may give a processor back after
// milliseconds to a thread that yields, but at once to one that wakes. Who passes a message
// on takes less than that.
const (
	spinFor   = 30 * time.Microsecond  // at full speed,
	lingerFor = 3 * time.Millisecond   // and so long after the last Run, giving way,
	lingerMax = 5 * time.Millisecond   // but for tasks that are no kernels, as when weights are read
	spinCheck = 64                     // looks between two readings of the clock
	taken     = 100 * time.Microsecond // a yield that takes so long was used by another
	goEvery   = 16                     // yields to the system for one to goroutines, where those may wait
	astray    = 150 * time.Microsecond // a message that is not there after that may wait for such a yield

	crowdedFor = 2 * time.Millisecond
)

// Whoever gives way to goroutines with one of Go's processors idle wakes a thread of the system,
// which looks for work and takes the goroutine over: four switches in each exchange of 200 us,
// and a thread that is under way when the next Run begins. So it is done only where threads that
// wait may hold all processors, and messages wait behind them. Who polls never leaves its processor
// idle, to look for goroutines that came to stand behind a thread of the pool; so it has the threads
// give way when it has waited a while: they change processors with it, which costs each time.
var (
	lookouts   atomic.Int32 // threads of all pools that are not parked, but for their callers, and Waiters after a while
	processors atomic.Int32 // of Go, when a pool was made last
)

func fillProcessors() bool { return lookouts.Load() >= processors.Load() }

// crowd is what a thread knows of others that want its processor.
type crowd struct{ until time.Time }

// spinner is a thread that waits.
type spinner struct {
	crowd        *crowd
	began, since time.Time
	yields       int
}

func newSpinner(c *crowd) spinner {
	now := time.Now()
	return spinner{crowd: c, began: now, since: now}
}

// on gives way, and says whether to look again. busy says that other threads are still at
// work, after which more is likely.
func (s *spinner) on(busy bool) bool {
	now := time.Now()
	if busy {
		s.since = now
	}
	switch {
	case now.Sub(s.since) > lingerFor, now.Sub(s.began) > lingerMax:
		return false
	case now.Sub(s.began) < spinFor:
		return true
	case now.Before(s.crowd.until):
		return false
	}
	if s.yields++; s.yields%goEvery == 0 && fillProcessors() {
		runtime.Gosched()
	}
	now = time.Now()
	yield()
	if after := time.Now(); after.Sub(now) > taken {
		s.crowd.until = after.Add(crowdedFor)
		return false
	}
	return true
}

// Waiter waits for what others compute as the threads of a pool wait for work, and lets the
// goroutines run that bring it.
type Waiter struct {
	crowd crowd
	pause time.Duration // after which to look again, where others want the processor
}

const (
	waitCheck = 4 // looks between two readings of the clock
	pauseMost = 64 * time.Millisecond
)

// Wait looks until look says that it is there. false: not now, since some of Go's processors are
// idle, and to let goroutines run would wake threads there, or somebody else wants the processor:
// then it does without for a while, twice as long each time.
func (w *Waiter) Wait(look func() bool) bool {
	s := newSpinner(&w.crowd)
	until := s.crowd.until
	began, counted := s.began, int32(0)
	s.began = began.Add(-spinFor) // other processes may be late because they wait for this processor
	defer func() { lookouts.Add(-counted) }()
	for lookouts.Load()+1-counted >= processors.Load() {
		if counted == 0 && time.Since(began) > astray {
			counted = 1
			lookouts.Add(1)
		}
		for range waitCheck {
			runtime.Gosched()
			if look() {
				w.pause = 0
				return true
			}
		}
		if s.on(false) {
			continue
		}
		if w.crowd.until != until {
			w.taken()
		}
		break
	}
	return false
}

// taken notes that another used the processor.
func (w *Waiter) taken() {
	w.pause = min(2*max(w.pause, crowdedFor), pauseMost)
	w.crowd.until = time.Now().Add(w.pause)
}
