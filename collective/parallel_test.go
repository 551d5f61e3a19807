package collective

import (
	"errors"
	"sync"
	"testing"
	"time"
)

// rendezvous is a transport whose sends wait until all sends have begun.
type rendezvous struct {
	polled
	all  sync.WaitGroup
	fail int // the send to this rank fails
}

func (m *rendezvous) Send(dst int, msg []byte) error {
	m.all.Done()
	m.all.Wait()
	if dst == m.fail {
		return errors.New("no way there")
	}
	return nil
}

// parallel is tensor.Pool.Run with one thread per call.
func parallel(n int, f func(i int)) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { f(i) })
	}
	all.Wait()
}

// A polling goroutine sends to all ranks at once. A send that fails also fails the group.
func TestParallelSends(t *testing.T) {
	for _, c := range []struct {
		name string
		fail int
	}{{"all", 0}, {"one fails", 2}} {
		t.Run(c.name, func(t *testing.T) {
			const ranks = 4
			m := &rendezvous{fail: c.fail}
			m.all.Add(ranks - 1)
			var failed error
			g, err := NewGroup(Config{Rank: 0, Size: ranks, Deadline: time.Hour, Parallel: parallel, OnFail: func(err error) { failed = err }}, m)
			if err != nil {
				t.Fatal(err)
			}
			g.Hold()
			done := make(chan error, 1)
			part := []byte("abc")
			g.AllToAll(1, [][]byte{nil, part, part, part}, make([][]byte, ranks), func(err error) { done <- err })
			polled := make(chan struct{})
			go func() { defer close(polled); g.Poll() }()
			select {
			case <-polled:
			case <-time.After(10 * time.Second):
				t.Fatal("sends wait for each other in vain: one after the other")
			}
			if err := <-done; (err == nil) != (c.fail == 0) || (failed == nil) != (c.fail == 0) || c.fail > 0 && !errors.Is(failed, ErrTransport) {
				t.Errorf("done with %v, the group with %v", err, failed)
			}
			g.Close()
			<-g.Done()
		})
	}
}
