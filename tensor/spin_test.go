package tensor

import (
	"runtime"
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
	if n := helpers.Load(); n != 0 {
		t.Fatalf("%d threads of pools that are closed", n)
	}
	p := NewPool(6)
	defer p.Close()
	for use, want := range map[int]bool{6: true, 5: true, 4: false, 1: false} {
		if p.Use(use); fillProcessors() != want {
			t.Errorf("%d threads, of which one is the caller's, fill 4 processors: %v", use, !want)
		}
	}
	p.Use(4)
	q := NewPool(2)
	if !fillProcessors() {
		t.Error("four and two threads do not fill 4 processors")
	}
	solo := NewPool(1)
	solo.Close()
	q.Close()
	q.Close()
	if fillProcessors() {
		t.Error("a pool that is closed fills processors")
	}
	p.Close()
	if n := helpers.Load(); n != 0 {
		t.Errorf("%d threads of pools that are closed", n)
	}
}
