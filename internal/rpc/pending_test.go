package rpc

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/shoal-llm/shoal/internal/proto"
)

func TestPendingTakesOnlyItsReply(t *testing.T) {
	peer := Peer{Address: "a:1", ID: "far", Incarnation: 20}
	right := func() *proto.Envelope {
		return &proto.Envelope{Request: 5, To: 10, Incarnation: 20, From: "far"}
	}
	for name, change := range map[string]func(*proto.Envelope){
		"another request":                func(e *proto.Envelope) { e.Request = 6 },
		"to an earlier incarnation":      func(e *proto.Envelope) { e.To = 9 },
		"to nobody in particular":        func(e *proto.Envelope) { e.To = 0 },
		"from an earlier incarnation":    func(e *proto.Envelope) { e.Incarnation = 19 },
		"from another node at that port": func(e *proto.Envelope) { e.From = "else" },
	} {
		var p pending
		w := p.add(5, peer)
		e := right()
		change(e)
		if p.complete(10, e) || len(w.done) != 0 {
			t.Errorf("%s: taken", name)
		}
		if !p.complete(10, right()) {
			t.Errorf("%s: the right reply was not taken afterwards", name)
		}
		if p.complete(10, right()) {
			t.Errorf("%s: a second reply was taken", name)
		}
		p.remove(5)
		if p.complete(10, right()) {
			t.Errorf("%s: a reply after the end was taken", name)
		}
	}
}

func TestPendingFailsByAddress(t *testing.T) {
	var p pending
	a, b := p.add(1, Peer{Address: "a:1"}), p.add(2, Peer{Address: "b:1"})
	p.fail("a:1", ErrPeerLost)
	if len(a.done) != 1 || len(b.done) != 0 {
		t.Error("the wrong call failed")
	}
	p.fail("", ErrClosed)
	if r := <-a.done; r.err != ErrPeerLost {
		t.Errorf("first result lost: %v", r.err)
	}
	if r := <-b.done; r.err != ErrClosed {
		t.Errorf("got %v", r.err)
	}
}

// A reply after its caller gave up must not reach the next call.
func TestLateReplyIsDropped(t *testing.T) {
	if !isolate(t) {
		return
	}
	p := spawn(t, "127.0.0.1:0", "far", 1)
	s := system(t)
	mustSay(t, s, p.address, "hello")
	_, err := say(s, deadline(t, 200*time.Millisecond), p.address, kindSlow, "3000")
	wantErr(t, err, ErrTimeout)
	got, err := say(s, deadline(t, patience), p.address, kindSlow, "4000")
	if err != nil || got != "4000" {
		t.Fatalf("got %q, %v", got, err)
	}
	if n := s.Stats().Late; n != 1 { // arrives one second before the reply to the second call
		t.Errorf("%d late replies counted, want 1", n)
	}
}

// A process that returns under its old address must neither see replies to its earlier incarnation
// nor handle requests addressed to it.
func TestMeantForAnEarlierIncarnation(t *testing.T) {
	if !isolate(t) {
		return
	}
	p := spawn(t, "127.0.0.1:0", "far", 2)
	s := system(t)
	l, err := s.connectTo(deadline(t, patience), p.address)
	if err != nil || l.peer.Incarnation != 2 {
		t.Fatalf("%+v, %v", l, err)
	}
	w := s.calls.add(77, l.peer)
	body, _ := encode(kindEcho, wrapperspb.String("old"))
	if err := s.transmit(s.PID(p.address, "echo"), s.envelope(Version, kindEcho, 77, body.body, 1)); err != nil {
		t.Fatal(err)
	}
	select {
	case r := <-w.done:
		if e := (&RemoteError{Text: r.reply.GetError()}); !e.Is(ErrStale) {
			t.Errorf("answer %q, %v", r.reply.GetError(), r.err)
		}
	case <-time.After(patience):
		t.Fatal("no answer")
	}
}

func TestErrorsCrossTheWire(t *testing.T) {
	sentinel := errors.New("batcher: queue full")
	e := &RemoteError{Peer: "far", Text: errText(fmt.Errorf("%w: 7 wait", sentinel))}
	if !errors.Is(e, sentinel) || errors.Is(e, errors.New("batcher: queue")) == false {
		t.Error("sentinels are found by prefix, up to ':' or ' '")
	}
	if errors.Is(e, errors.New("batcher: que")) || errors.Is(e, context.Canceled) {
		t.Error("found a sentinel that is not there")
	}
	if got := errText(errors.New("\xff" + strings.Repeat("é", maxErrText))); len(got) > maxErrText || !strings.HasPrefix(got, "?é") {
		t.Errorf("text of %d bytes", len(got))
	}
}

func TestOutboxIsBounded(t *testing.T) {
	var o outbox
	if !o.reserve(60, 3, 100) || o.reserve(60, 3, 100) || !o.reserve(40, 3, 100) || !o.reserve(0, 3, 100) || o.reserve(0, 3, 100) {
		t.Errorf("%d messages, %d bytes", o.messages.Load(), o.bytes.Load())
	}
	o.release(3, 100)
	if o.messages.Load() != 0 || o.bytes.Load() != 0 {
		t.Errorf("%d messages, %d bytes left", o.messages.Load(), o.bytes.Load())
	}
}
