package executor

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/testutil"
)

// listener counts an executor's calls of a group.
type listener struct {
	held, polls, rests atomic.Int32
	off                bool
	poll               func(n int32) // called with the number of the poll
}

func (l *listener) Hold() { l.held.Add(1) }
func (l *listener) Rest() { l.rests.Add(1) }
func (l *listener) Poll() bool {
	if n := l.polls.Add(1); l.poll != nil {
		l.poll(n)
	}
	return !l.off
}

// An executor that waits for an exchange polls until its next job arrives. Before it sleeps it calls
// Rest, so that another goroutine receives.
func TestExecutorPolls(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // with idle CPUs the executor does not poll
	tensor.NewPool(1).Close()
	e := New()
	defer e.Close()
	term, done := e.NewTerm(), make(chan bool, 1)
	l := &listener{}
	l.poll = func(n int32) {
		if n == 5 { // the fifth poll completes the exchange
			term.Submit(func() { done <- l.rests.Load() == 0 })
		}
	}
	began := false
	term.Submit(func() { term.Await(false, l, func() { began = l.held.Load() == 1 && l.polls.Load() == 0 }) })
	select {
	case early := <-done:
		if !began || !early {
			t.Errorf("began after Hold and before the first poll: %v; polled until the job arrived: %v", began, early)
		}
	case <-time.After(time.Minute):
		t.Fatal("the job did not run within a minute")
	}
	rests := func(want int32) {
		t.Helper()
		testutil.Eventually(t, time.Minute, "a call of Rest before the executor sleeps", func() (bool, string) {
			n := l.rests.Load()
			return n >= want, fmt.Sprintf("%d calls, want %d", n, want)
		})
		if polls := l.polls.Load(); polls < 5 {
			t.Errorf("%d polls", polls)
		}
	}
	rests(1)

	l.poll = nil // no message arrives: the executor stops polling
	term.Submit(func() { term.Await(false, l, func() {}) })
	rests(2)
	term.Submit(func() { done <- true })
	<-done

	before := l.polls.Load()
	term.Submit(func() { term.Await(false, l, func() { term.Submit(func() { done <- true }) }) }) // completes at once
	<-done
	rests(3)
	if n := l.polls.Load() - before; n != 1 {
		t.Errorf("%d polls for an exchange that completed before the first", n)
	}

	term.Submit(func() { term.Await(true, l, func() { done <- l.held.Load() == 3 }) })
	if !<-done {
		t.Error("called Hold for the exchange of a prompt")
	}
	rests(4)
	l.off = true
	term.Submit(func() { term.Await(false, l, func() {}) })
	term.Submit(func() { done <- true })
	<-done
	time.Sleep(5 * time.Millisecond)
	if n := l.rests.Load(); n != 4 {
		t.Errorf("%d calls of Rest without a poll", n-4)
	}
}
