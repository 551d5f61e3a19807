package layer

import "testing"

// A layer that hears of a teardown late submits a leg behind the job that freed
// the weights: the leg must not run. A job of the next epoch must.
func TestLegOfAnEndedTermIsDropped(t *testing.T) {
	e := NewExecutor(1)
	old, next := e.NewTerm(), e.NewTerm()
	freed := false
	old.End(func() { freed = true })
	old.Submit(func() { t.Errorf("a leg ran after its epoch was freed (%v)", freed) })
	old.End(func() { t.Error("an epoch was freed twice") })
	ran := false
	next.Submit(func() { ran = true })
	e.Close()
	if !freed || !ran {
		t.Errorf("freed %v, the next epoch's leg ran %v, want both", freed, ran)
	}
	// A stopped socket's layers may still speak.
	for range 10 {
		next.Submit(func() { t.Error("a job ran after Close") })
	}
	e.Close()
}
