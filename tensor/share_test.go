package tensor

import (
	"sync"
	"testing"
)

// However threads interleave, every task is claimed once, and a thread that is alone
// with its share takes it in order.
func TestSharesAreClaimedOnce(t *testing.T) {
	const threads, rounds = 5, 400
	m := make(shares, threads)
	for n := range rounds {
		m.split(n)
		claimed := make([]int, n)
		var mu sync.Mutex
		var all sync.WaitGroup
		tickets := make(chan struct{}, n)
		for range n {
			tickets <- struct{}{}
		}
		close(tickets)
		for w := range threads {
			all.Go(func() {
				for range tickets {
					i := m.claim(w)
					mu.Lock()
					claimed[i]++
					mu.Unlock()
				}
			})
		}
		all.Wait()
		for i, times := range claimed {
			if times != 1 {
				t.Fatalf("of %d tasks, task %d was claimed %d times", n, i, times)
			}
		}
	}
	m.split(3 * threads)
	for want := 3; want < 6; want++ {
		if i := m.claim(1); i != want {
			t.Fatalf("thread 1 claims task %d of its share, want %d", i, want)
		}
	}
	for _, want := range []int{7, 8, 6} {
		if i := m.claim(1); i != want {
			t.Fatalf("a thread that is done claims task %d, want %d: the later half of the next one's", i, want)
		}
	}
}
