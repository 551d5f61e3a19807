package collective

import (
	"errors"
	"testing"
	"time"
)

// taker is a transport whose sends call a function of the test.
type taker struct{ take func() error }

func (t taker) Broadcast([]byte) error  { return t.take() }
func (t taker) Send(int, []byte) error  { return t.take() }
func (taker) Receive(func(int, []byte)) {}
func (taker) Close() error              { return nil }

// TestDoneAfterSent: a rank that expects no data completes only when the transport has accepted its
// message. Otherwise its next computation would keep the CPU from sending.
func TestDoneAfterSent(t *testing.T) {
	done, before := false, false
	m, err := NewManualGroup(Config{Rank: 0, Size: 2}, taker{func() error { before = done; return nil }})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	m.AllToAll(1, [][]byte{nil, []byte("x")}, [][]byte{nil, nil}, func(err error) { done = err == nil })
	m.Work()
	if before || !done {
		t.Errorf("done before the transport took the message: %v; done after: %v", before, done)
	}
}

// TestHeldSendFails: a group can fail while the transport blocks one of its sends.
func TestHeldSendFails(t *testing.T) {
	held, let := make(chan struct{}), make(chan struct{})
	g, err := NewGroup(Config{Rank: 0, Size: 2, Deadline: time.Hour}, taker{func() error { close(held); <-let; return nil }})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { close(let); g.Close(); <-g.Done() }()
	done := make(chan error, 1)
	g.AllToAll(1, [][]byte{nil, []byte("x")}, [][]byte{nil, nil}, func(err error) { done <- err })
	<-held
	g.Fail(&OpError{Ranks: []int{1}, Err: ErrPeerLost})
	select {
	case err := <-done:
		if !errors.Is(err, ErrPeerLost) {
			t.Errorf("done with %v, want %v", err, ErrPeerLost)
		}
	case <-time.After(time.Minute):
		t.Error("the operation waits for the transport although its group has failed")
	}
}
