package inorder

import "testing"

// A batch waits until the one before has used the caches of the same layer. It never waits for a batch
// that has ended.
func TestOrder(t *testing.T) {
	var a, b Order
	b.Follow(&a)
	resumed := 0
	resume := func() { resumed++ }
	ran := func(o *Order, n int, ends bool) {
		if f := o.Ran(n, ends); f != nil {
			f()
		}
	}
	if b.Park(0, resume) || a.Park(1, resume) {
		t.Fatal("a run without caches, or the first batch, waits")
	}
	if !b.Park(1, resume) {
		t.Fatal("the second batch uses the caches first")
	}
	ran(&a, 0, false)
	if resumed != 0 {
		t.Fatal("resumed by a run that does not use the caches")
	}
	ran(&a, 1, false)
	if resumed != 1 || b.Park(1, resume) {
		t.Fatalf("resumed %d times", resumed)
	}
	ran(&b, 1, false)
	if !b.Park(2, resume) { // the next two layers
		t.Fatal("the second batch is a layer ahead")
	}
	ran(&a, 1, false)
	if resumed != 2 || !b.Park(2, resume) {
		t.Fatalf("one layer of two is enough, resumed %d times", resumed)
	}
	ran(&a, 0, true)
	if resumed != 3 || b.Park(5, resume) {
		t.Fatalf("waits for a batch that has ended, resumed %d times", resumed)
	}
}
