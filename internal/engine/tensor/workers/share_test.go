package workers

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

// For any interleaving of the threads, every task is claimed once, and none for another Run: a
// thread that still looks for tasks of the last Run takes none while the next ones are dealt.
func TestSharesAreClaimedOnce(t *testing.T) {
	const threads, rounds = 5, 400
	m := make(Shares, threads)
	var number atomic.Uint64
	var left atomic.Int64
	var claimed [rounds]atomic.Int32
	var all sync.WaitGroup
	for w := range threads {
		all.Go(func() {
			for seen := uint64(0); seen < rounds; {
				tag := number.Load()
				i, ok := m.Next(w, tag)
				if !ok {
					i, ok = m.Steal(w, tag)
				}
				if !ok {
					seen = tag
					runtime.Gosched()
					continue
				}
				claimed[i].Add(1)
				left.Add(-1)
			}
		})
	}
	for n := range uint64(rounds) {
		for i := range n {
			claimed[i].Store(0)
		}
		left.Store(int64(n))
		m.Split(n+1, int(n))
		number.Store(n + 1)
		for left.Load() > 0 {
			runtime.Gosched()
		}
		for i := range n {
			if times := claimed[i].Load(); times != 1 {
				t.Errorf("of %d tasks, task %d was claimed %d times", n, i, times)
			}
		}
	}
	all.Wait()
}

// A thread takes its share in order, then the later half of the next thread's share.
func TestSharesInOrder(t *testing.T) {
	const threads, tag = 5, 77
	m := make(Shares, threads)
	m.Split(tag, 3*threads)
	for want := 3; want < 6; want++ {
		if i, ok := m.Next(1, tag); !ok || i != want {
			t.Fatalf("thread 1 claims task %d, %v of its share, want %d", i, ok, want)
		}
	}
	if _, ok := m.Next(1, tag); ok {
		t.Fatal("a fourth task of three")
	}
	if i, ok := m.Steal(1, tag); !ok || i != 7 {
		t.Fatalf("a thread that is done claims task %d, %v, want 7: the later half of the next one's", i, ok)
	}
	if i, ok := m.Next(1, tag); !ok || i != 8 {
		t.Fatalf("and then task %d, %v, want 8", i, ok)
	}
	if _, ok := m.Steal(1, tag+1); ok {
		t.Fatal("a task of another Run")
	}
}
