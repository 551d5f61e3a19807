package tensor

import (
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
