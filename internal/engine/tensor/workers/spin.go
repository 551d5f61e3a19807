package workers

import (
	"runtime"
	"sync/atomic"
	"time"
)

// How an idle thread of a pool waits. Products of a step follow one another within microseconds,
// steps and exchanges within a millisecond or two. A parked thread takes up to a hundred
// microseconds to wake: when 16 threads parked sooner, a third of them missed each product. Several
// processes may share the CPUs, so a thread that waits longer yields its CPU repeatedly. If another
// thread used it for long, the waiting thread parks and does not linger for a while. The system may
// return a CPU to a yielding thread after milliseconds only, but to a waking thread at once.
// Threads that pass on messages need it for less time than that.
const (
	spinFor       = 30 * time.Microsecond  // spin without yielding
	lingerFor     = 3 * time.Millisecond   // then yield until this long after the last Run
	lingerMax     = 5 * time.Millisecond   // limit for tasks that are not kernels, such as reading weights
	SpinCheck     = 64                     // polls between two readings of the clock
	contended     = 100 * time.Microsecond // a yield that takes this long means that another thread ran
	goschedEvery  = 16                     // yields to the system per yield to goroutines, if those may wait
	goschedNeeded = 150 * time.Microsecond // a message that is late by this may need such a yield

	backOffFor = 2 * time.Millisecond
)

// A thread that yields to goroutines while one of Go's Ps is idle wakes a system thread. That thread
// looks for work and takes over the goroutine. That costs four context switches in each exchange of
// 200 us, and the woken thread is busy when the next Run starts. So a pool's threads yield to
// goroutines only if waiting threads may occupy all Ps while messages wait for one. A polling
// thread never leaves its P idle, so that P never steals goroutines that are queued at a pool
// thread's P. So after a while it counts itself as spinning, which makes the pool's threads yield
// to goroutines too. That switches their Ps, which costs time, hence the delay.
var (
	Spinning atomic.Int32 // threads of all pools that are not parked, without their callers, and Waiters after a while
	MaxProcs atomic.Int32 // GOMAXPROCS when the last pool was made
)

// AllProcsBusy reports whether waiting threads may occupy all of Go's Ps.
func AllProcsBusy() bool { return Spinning.Load() >= MaxProcs.Load() }

// Contention records that other threads need the CPU of a thread.
type Contention struct{ until time.Time }

// Spinner is a waiting thread.
type Spinner struct {
	contention   *Contention
	Began, since time.Time
	yields       int
}

func NewSpinner(c *Contention) Spinner {
	now := time.Now()
	return Spinner{contention: c, Began: now, since: now}
}

// Relax yields and reports whether to keep spinning. busy means that other threads still work, so more
// work is likely.
func (s *Spinner) Relax(busy bool) bool {
	now := time.Now()
	if busy {
		s.since = now
	}
	switch {
	case now.Sub(s.since) > lingerFor, now.Sub(s.Began) > lingerMax:
		return false
	case now.Sub(s.Began) < spinFor:
		return true
	case now.Before(s.contention.until):
		return false
	}
	if s.yields++; s.yields%goschedEvery == 0 && AllProcsBusy() {
		runtime.Gosched()
	}
	now = time.Now()
	Yield()
	if after := time.Now(); after.Sub(now) > contended {
		s.contention.until = after.Add(backOffFor)
		return false
	}
	return true
}

// Waiter waits for other goroutines' results like a thread of a pool waits for work, and lets the
// goroutines run that deliver them.
type Waiter struct {
	contention Contention
	pause      time.Duration // how long to refuse after contention
}

const (
	waitCheck = 4 // polls between two readings of the clock
	maxPause  = 64 * time.Millisecond
)

// Wait polls look until it returns true. It returns false in two cases. If some of Go's Ps are idle,
// yielding to goroutines would wake system threads. If another thread needs the CPU, Wait also returns
// false for a while afterwards; that time doubles with each case.
func (w *Waiter) Wait(look func() bool) bool {
	s := NewSpinner(&w.contention)
	until := s.contention.until
	began, counted := s.Began, int32(0)
	s.Began = began.Add(-spinFor) // other processes may be late because they wait for this CPU
	defer func() { Spinning.Add(-counted) }()
	for Spinning.Load()+1-counted >= MaxProcs.Load() {
		if counted == 0 && time.Since(began) > goschedNeeded {
			counted = 1
			Spinning.Add(1)
		}
		for range waitCheck {
			runtime.Gosched()
			if look() {
				w.pause = 0
				return true
			}
		}
		if s.Relax(false) {
			continue
		}
		if w.contention.until != until {
			w.backOff()
		}
		break
	}
	return false
}

// backOff records that another thread used the CPU.
func (w *Waiter) backOff() {
	w.pause = min(2*max(w.pause, backOffFor), maxPause)
	w.contention.until = time.Now().Add(w.pause)
}
