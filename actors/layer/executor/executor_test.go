package executor

import (
	"testing"
)

// A layer that gets the message of a teardown late submits a job after the one that freed the weights.
// That job must not run; a job of the next epoch must.
func TestJobOfAnEndedTermIsDropped(t *testing.T) {
	e := New()
	old, next := e.NewTerm(), e.NewTerm()
	freed := false
	old.End(func() { freed = true })
	old.Submit(func() { t.Errorf("a job ran after its epoch was freed (%v)", freed) })
	old.End(func() { t.Error("an epoch was freed twice") })
	ran := false
	next.Submit(func() { ran = true })
	e.Close()
	if !freed || !ran {
		t.Errorf("freed %v, the next epoch's job ran %v, want both", freed, ran)
	}
	// The layers of a stopped socket may still submit jobs.
	for range 10 {
		next.Submit(func() { t.Error("a job ran after Close") })
	}
	e.Close()
}

// The memory of a queue that never runs empty is bounded by the number of waiting jobs.
func TestExecutorForgetsJobs(t *testing.T) {
	e := New()
	last := make(chan struct{})
	left := 10000
	var again func()
	again = func() {
		if left--; left > 0 {
			e.Submit(again) // another job is queued already
		} else if left == 0 {
			close(last)
		}
	}
	e.Submit(func() {
		e.Submit(again)
		e.Submit(again)
	})
	<-last
	e.Close()
	if n := cap(e.jobs); n > 16 {
		t.Errorf("capacity for %d jobs, though never more than 3 waited", n)
	}
}

// A job may submit any number of jobs: the queue must not block, because only the executor drains it.
func TestJobsSubmit(t *testing.T) {
	e := New()
	var order []int
	e.Submit(func() {
		if done, busy := e.Progress(); done != 0 || !busy {
			t.Errorf("in the first job: %d jobs done, busy %v", done, busy)
		}
		for i := range 100 {
			e.Submit(func() { order = append(order, i) })
		}
	})
	last := make(chan struct{})
	e.Submit(func() { close(last) })
	<-last
	e.Close()
	if len(order) != 100 || order[0] != 0 || order[99] != 99 {
		t.Errorf("jobs of a job ran as %v, want 0 to 99", order)
	}
	if done, busy := e.Progress(); done != 102 || busy {
		t.Errorf("%d jobs done, busy %v, want 102 and idle", done, busy)
	}
}
