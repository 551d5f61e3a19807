package workers

import (
	"runtime"
	"testing"
	"time"
)

// A thread whose CPU another thread used does not linger for a while, and then does again.
func TestLingerGivesWay(t *testing.T) {
	c := &Contention{}
	waited := func() bool { // past spinFor, when all other threads are idle
		s := NewSpinner(c)
		s.Began = s.Began.Add(-2 * spinFor)
		return s.Relax(false)
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
	s := NewSpinner(c)
	s.since = s.since.Add(-2 * lingerFor)
	if s.Relax(false) {
		t.Error("a thread lingers without end")
	}
	s = NewSpinner(c)
	if s.since = s.since.Add(-2 * lingerFor); !s.Relax(true) {
		t.Error("a thread parks while others work")
	}
	s.Began = s.Began.Add(-2 * lingerMax)
	if s.Relax(true) {
		t.Error("a thread lingers without end during a task")
	}
}

// A Waiter gives up if some of Go's Ps are idle, and if another thread needs its CPU: then for longer
// and longer.
func TestWaiter(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	MaxProcs.Store(2)
	var w Waiter
	looks := 0
	never := func() bool { looks++; return false }
	if w.Wait(never) || looks > 0 {
		t.Errorf("looked %d times with an idle processor", looks)
	}
	Spinning.Add(1)
	defer Spinning.Add(-1)
	if !w.Wait(func() bool { looks++; return looks == 7 }) && !w.contention.until.After(time.Now()) {
		t.Errorf("gave up after %d looks for no reason", looks)
	}
	began := time.Now()
	if w.Wait(never) {
		t.Error("reported success")
	}
	if took := time.Since(began); took > time.Minute {
		t.Errorf("looked for %v", took)
	}
	w = Waiter{} // another thread may have needed the CPU before
	for want := 2 * backOffFor; want <= 2*maxPause; want *= 2 {
		w.contention.until = time.Time{}
		w.backOff()
		if left := time.Until(w.contention.until); left > min(want, maxPause) || left < min(want, maxPause)/2 {
			t.Errorf("does without for %v, want %v", left, min(want, maxPause))
		}
	}
}
