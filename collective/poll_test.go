package collective

import (
	"errors"
	"slices"
	"testing"
	"time"
)

// polled is a transport of one rank of two that delivers messages only when it is polled.
type polled struct {
	off     bool
	sent    chan bool // whether the polling goroutine sent it
	in      [][]byte
	receive func(int, []byte)
	polling bool
	rests   int
}

func (p *polled) Broadcast([]byte) error      { p.sent <- p.polling; return nil }
func (p *polled) Send(int, []byte) error      { p.sent <- p.polling; return nil }
func (p *polled) Receive(f func(int, []byte)) { p.receive = f }
func (p *polled) Close() error                { return nil }
func (p *polled) Polls() bool                 { return !p.off }
func (p *polled) Rest()                       { p.rests++ }
func (p *polled) Poll() {
	p.polling = false
	in := p.in
	p.in = nil
	for _, m := range in {
		p.receive(1, m)
	}
}

// TestPollDoesTheWork: a goroutine that holds and polls a group sends and receives by itself; no
// other goroutine does.
func TestPollDoesTheWork(t *testing.T) {
	p := &polled{sent: make(chan bool, 8)}
	g, err := NewGroup(Config{Rank: 0, Size: 2, Deadline: time.Hour}, p)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { g.Close(); <-g.Done() }()
	got, done := []byte("..."), 0
	begin := func(id OpID) {
		g.AllToAll(id, [][]byte{nil, []byte("abc")}, [][]byte{nil, got}, func(err error) {
			if err != nil && !errors.Is(err, ErrClosed) {
				t.Error(err)
			}
			done++
		})
	}
	g.Hold()
	begin(1)
	select {
	case <-p.sent:
		t.Fatal("sent before the poll")
	case <-time.After(20 * time.Millisecond):
	}
	p.polling = true
	if !g.Poll() || !<-p.sent {
		t.Fatal("the poll did not send")
	}
	if done > 0 {
		t.Fatal("done with nothing received")
	}
	msg := make([]byte, MessageBytes(3))
	copy(msg[HeaderBytes:], "xyz")
	PutMessage(msg, Header{Kind: KindAllToAll, Source: 1, Size: 2, Op: 1, Chunks: 1, Length: 3})
	p.in = [][]byte{msg}
	if g.Poll(); done != 1 || !slices.Equal(got, []byte("xyz")) {
		t.Errorf("done %d times with %q", done, got)
	}
	begin(2) // without Hold
	if <-p.sent {
		t.Error("sent by nobody's poll")
	}
	g.Rest()
	if p.rests != 1 {
		t.Errorf("rests %d times", p.rests)
	}
	p.off = true // a connection that cannot be polled
	g.Hold()
	if begin(3); g.Poll() {
		t.Error("Poll returned true for a transport that cannot be polled")
	}
	<-p.sent
}
