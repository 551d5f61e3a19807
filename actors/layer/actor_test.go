package layer

import "testing"

// A layer that hears of a teardown late submits a job behind the one that freed
// the weights: it must not run. A job of the next epoch must.
func TestJobOfAnEndedTermIsDropped(t *testing.T) {
	e := NewExecutor()
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
	// A stopped socket's layers may still speak.
	for range 10 {
		next.Submit(func() { t.Error("a job ran after Close") })
	}
	e.Close()
}

// A queue that never runs empty takes room for what waits alone.
func TestExecutorForgetsJobs(t *testing.T) {
	e := NewExecutor()
	last := make(chan struct{})
	left := 10000
	var again func()
	again = func() {
		if left--; left > 0 {
			e.Submit(again) // one behind it waits already
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
		t.Errorf("room for %d jobs, never more than 3 waited", n)
	}
}

// A job may submit as many as it likes: nobody else could take them meanwhile.
func TestJobsSubmit(t *testing.T) {
	e := NewExecutor()
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
