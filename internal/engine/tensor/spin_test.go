package tensor

import (
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"
)

// A thread whose processor another took lingers no more for a while, and then again.
func TestLingerGivesWay(t *testing.T) {
	c := &crowd{}
	waited := func() bool { // past spinFor, when all others are idle
		s := newSpinner(c)
		s.began = s.began.Add(-2 * spinFor)
		return s.on(false)
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
	if s.on(false) {
		t.Error("a thread lingers without end")
	}
	s = newSpinner(c)
	if s.since = s.since.Add(-2 * lingerFor); !s.on(true) {
		t.Error("a thread parks while others work")
	}
	s.began = s.began.Add(-2 * lingerMax)
	if s.on(true) {
		t.Error("a thread lingers without end beside a task")
	}
}

// Threads give way to goroutines only where they may hold all of Go's processors.
func TestFillProcessors(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))
	looking := func(want int32) {
		t.Helper()
		for end := time.Now().Add(time.Minute); lookouts.Load() != want; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%d threads look for work, not %d", lookouts.Load(), want)
			}
		}
	}
	looking(0) // those of pools that are closed do not
	p := NewPool(6)
	defer p.Close()
	p.Run(6, func(int) {})
	looking(0) // nor do those that have found none for long
	lookouts.Add(3)
	defer lookouts.Add(-3)
	if fillProcessors() {
		t.Error("three threads fill 4 processors")
	}
	lookouts.Add(1)
	if !fillProcessors() {
		t.Error("four do not")
	}
	lookouts.Add(-1)
	runtime.GOMAXPROCS(3)
	if p.Use(2); !fillProcessors() {
		t.Error("three do not fill 3 processors")
	}
	p.Close()
	looking(3)
}

// A Waiter gives up where some of Go's processors are idle, and where somebody else wants this one:
// then for longer and longer.
func TestWaiter(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	p := NewPool(1) // notes how many processors there are
	defer p.Close()
	var w Waiter
	looks := 0
	never := func() bool { looks++; return false }
	if w.Wait(never) || looks > 0 {
		t.Errorf("looked %d times beside an idle processor", looks)
	}
	lookouts.Add(1)
	defer lookouts.Add(-1)
	if !w.Wait(func() bool { looks++; return looks == 7 }) && !w.crowd.until.After(time.Now()) {
		t.Errorf("gave up after %d looks for no reason", looks)
	}
	began := time.Now()
	if w.Wait(never) {
		t.Error("found what is not there")
	}
	if took := time.Since(began); took > time.Second {
		t.Errorf("looked for %v", took)
	}
	w = Waiter{} // somebody may have wanted the processor before
	for want := 2 * crowdedFor; want <= 2*pauseMost; want *= 2 {
		w.crowd.until = time.Time{}
		w.taken()
		if left := time.Until(w.crowd.until); left > min(want, pauseMost) || left < min(want, pauseMost)/2 {
			t.Errorf("does without for %v, want %v", left, min(want, pauseMost))
		}
	}
}

// While somebody polls, a goroutine runs that stands behind a thread that looks for work, before
// that one parks.
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
			for !started.Load() { // the thread of the pool has that task, not the caller
			}
		})
		var w Waiter
		began := time.Now()
		if w.Wait(ran.Load); w.crowd.until.IsZero() {
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
