package tensor

import (
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"
)

// A thread whose CPU another thread used does not linger for a while, and then does again.
func TestLingerGivesWay(t *testing.T) {
	c := &contention{}
	waited := func() bool { // past spinFor, when all other threads are idle
		s := newSpinner(c)
		s.began = s.began.Add(-2 * spinFor)
		return s.relax(false)
	}
	start := time.Now()
	c.until = start.Add(time.Hour)
	if waited() {
		t.Error("a thread lingers where its processor was taken")
	}
	lingers := func() bool { // unless this machine is busy at every attempt
		for range 1000 {
			if c.until = start; waited() {
				return true
			}
			time.Sleep(time.Millisecond)
		}
		return false
	}
	if !lingers() {
		t.Error("a thread does not linger where nobody took its processor")
	}
	s := newSpinner(c)
	s.since = s.since.Add(-2 * lingerFor)
	if s.relax(false) {
		t.Error("a thread lingers without end")
	}
	s = newSpinner(c)
	if s.since = s.since.Add(-2 * lingerFor); !s.relax(true) {
		t.Error("a thread parks while others work")
	}
	s.began = s.began.Add(-2 * lingerMax)
	if s.relax(true) {
		t.Error("a thread lingers without end beside a task")
	}
}

// Threads yield to goroutines only if they may occupy all of Go's Ps.
func TestFillProcessors(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))
	looking := func(want int32) {
		t.Helper()
		for end := time.Now().Add(time.Minute); spinning.Load() != want; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%d threads look for work, not %d", spinning.Load(), want)
			}
		}
	}
	looking(0) // threads of closed pools do not count
	p := NewPool(6)
	defer p.Close()
	p.Run(6, func(int) {})
	looking(0) // nor do those that have found no work for long
	spinning.Add(3)
	defer spinning.Add(-3)
	if allProcsBusy() {
		t.Error("three threads fill 4 processors")
	}
	spinning.Add(1)
	if !allProcsBusy() {
		t.Error("four do not")
	}
	spinning.Add(-1)
	runtime.GOMAXPROCS(3)
	if p.SetThreads(2); !allProcsBusy() {
		t.Error("three do not fill 3 processors")
	}
	p.Close()
	looking(3)
}

// A Waiter gives up if some of Go's Ps are idle, and if another thread wants its CPU: then for
// longer and longer.
func TestWaiter(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	p := NewPool(1) // records GOMAXPROCS
	defer p.Close()
	var w Waiter
	looks := 0
	never := func() bool { looks++; return false }
	if w.Wait(never) || looks > 0 {
		t.Errorf("looked %d times with an idle processor", looks)
	}
	spinning.Add(1)
	defer spinning.Add(-1)
	if !w.Wait(func() bool { looks++; return looks == 7 }) && !w.contention.until.After(time.Now()) {
		t.Errorf("gave up after %d looks for no reason", looks)
	}
	began := time.Now()
	if w.Wait(never) {
		t.Error("found what is not there")
	}
	if took := time.Since(began); took > time.Second {
		t.Errorf("looked for %v", took)
	}
	w = Waiter{} // another thread may have wanted the CPU before
	for want := 2 * backOffFor; want <= 2*maxPause; want *= 2 {
		w.contention.until = time.Time{}
		w.backOff()
		if left := time.Until(w.contention.until); left > min(want, maxPause) || left < min(want, maxPause)/2 {
			t.Errorf("does without for %v, want %v", left, min(want, maxPause))
		}
	}
}

// While a goroutine polls, a goroutine that is queued at a spinning thread's P runs before that
// thread parks.
func TestWaiterBehindThread(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	p := NewPool(2)
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
		var w Waiter
		began := time.Now()
		if w.Wait(ran.Load); w.contention.until.IsZero() {
			took = append(took, time.Since(began))
		}
	}
	if len(took) < 25 {
		t.Skip("others wanted this processor most of the time")
	}
	if slices.Sort(took); took[len(took)/2] > lingerFor/2 {
		t.Errorf("a goroutine behind a thread that waits ran after %v", took[len(took)/2])
	}
}
