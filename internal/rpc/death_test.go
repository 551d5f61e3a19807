package rpc

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/asynkron/protoactor-go/remote"

	"github.com/shoal-llm/shoal/internal/testutil"
)

// downs spawns a local actor that collects PeerDown messages.
func downs(t *testing.T, s *System) (*actor.PID, <-chan *PeerDown) {
	t.Helper()
	ch := make(chan *PeerDown, 16)
	return s.Actors().Root.Spawn(actor.PropsFromFunc(func(c actor.Context) {
		if d, ok := c.Message().(*PeerDown); ok {
			ch <- d
		}
	})), ch
}

func watching(t *testing.T, s *System, address string) <-chan *PeerDown {
	t.Helper()
	pid, ch := downs(t, s)
	if _, err := s.Watch(Peer{Address: address}, pid); err != nil {
		t.Fatal(err)
	}
	s.watches.mu.Lock()
	defer s.watches.mu.Unlock()
	for w := range s.watches.by[address] {
		select {
		case <-w.answered:
		case <-time.After(patience):
			t.Fatal("the watch has not met its peer")
		}
	}
	return ch
}

func expect(t *testing.T, ch <-chan *PeerDown) *PeerDown {
	t.Helper()
	begun := time.Now()
	select {
	case d := <-ch:
		t.Logf("notice after %v: %s", time.Since(begun), d.Reason)
		return d
	case <-time.After(patience):
		t.Fatalf("no notice within %v", patience)
		return nil
	}
}

func TestKillIsNoticed(t *testing.T) {
	if !isolate(t) {
		return
	}
	p := spawn(t, "127.0.0.1:0", "far", 7)
	s := system(t)
	mustSay(t, s, p.address, "hello")
	ch := watching(t, s, p.address)

	failed := make(chan error, 1)
	ctx := deadline(t, patience)
	go func() {
		_, err := say(s, ctx, p.address, kindSilent, "")
		failed <- err
	}()
	for { // the hello, and the call without a reply
		if n, err := say(s, ctx, p.address, kindCount, ""); err != nil {
			t.Fatal(err)
		} else if n == "2" {
			break
		}
	}
	p.kill()
	d := expect(t, ch)
	if d.Peer.ID != "far" || d.Peer.Incarnation != 7 || d.Restarted {
		t.Errorf("notice %+v", d)
	}
	select {
	case err := <-failed:
		wantErr(t, err, ErrPeerLost)
	case <-time.After(patience / 2):
		t.Error("a call outlived its peer")
	}
	_, err := say(s, deadline(t, patience), p.address, kindEcho, "anyone?")
	wantErr(t, err, ErrUnreachable)
	if errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a call to a dead address waits for its deadline: %v", err)
	}
}

func TestRestartOnTheSamePort(t *testing.T) {
	if !isolate(t) {
		return
	}
	p := spawn(t, "127.0.0.1:0", "far", 1)
	s := system(t)
	mustSay(t, s, p.address, "hello")
	ch := watching(t, s, p.address)
	p.kill()
	expect(t, ch)
	// The successor answers calls made while no process listens.
	answered := make(chan error, 1)
	ctx := deadline(t, patience)
	go func() {
		got, err := say(s, ctx, p.address, kindEcho, "wait", Idempotent(0))
		if err == nil && got != "wait" {
			err = fmt.Errorf("got %q", got)
		}
		answered <- err
	}()
	time.Sleep(200 * time.Millisecond)
	next := spawn(t, p.address, "far", 2)
	begun := time.Now()
	if err := <-answered; err != nil {
		t.Fatal(err)
	}
	t.Logf("answered %v after the restart", time.Since(begun))
	mustSay(t, s, next.address, "new calls")
}

// A watch that detects the loss only after the successor listens reports it.
func TestRestartIsReported(t *testing.T) {
	if !isolate(t) {
		return
	}
	p := spawn(t, "127.0.0.1:0", "far", 1)
	s := system(t)
	known := Peer{Address: p.address, ID: "far", Incarnation: 1}
	p.kill()
	spawn(t, p.address, "far", 2)
	w := newWatch()
	got, err := s.holdWatch(deadline(t, patience), p.address, &known, w)
	if err != nil || got.Incarnation != 2 || known.Incarnation != 1 {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestFalseAlarm(t *testing.T) {
	if !isolate(t) {
		return
	}
	p := spawn(t, "127.0.0.1:0", "far", 1)
	s := system(t)
	mustSay(t, s, p.address, "hello")
	ch := watching(t, s, p.address)
	var ended atomic.Int32
	s.Actors().EventStream.Subscribe(func(e any) {
		if _, ok := e.(*remote.EndpointTerminatedEvent); ok {
			ended.Add(1)
		}
	})
	for range 5 {
		s.PeerLost(p.address)
		// Proto.Actor's old stream used to end the new endpoint here, and the first request with
		// it.
		mustSay(t, s, p.address, "still here")
	}
	testutil.Eventually(t, patience, "5 alarms end endpoints", func() (bool, string) {
		n := ended.Load()
		return n >= 5, fmt.Sprint(n, " ended")
	})
	time.Sleep(100 * time.Millisecond)
	if n := ended.Load(); n != 5 {
		t.Errorf("5 alarms ended endpoints %d times", n)
	}
	select {
	case d := <-ch:
		t.Fatalf("a living peer was reported: %s", d.Reason)
	case <-time.After(200 * time.Millisecond):
	}
	p.kill()
	expect(t, ch)
	select {
	case <-ch:
		t.Error("reported twice")
	case <-time.After(100 * time.Millisecond):
	}
}

func TestFrozenPeer(t *testing.T) {
	if !isolate(t) {
		return
	}
	p := spawn(t, "127.0.0.1:0", "far", 1)
	s := system(t, func(c *Config) { c.ProbeTimeout = 200 * time.Millisecond })
	mustSay(t, s, p.address, "hello")
	ch := watching(t, s, p.address)
	p.freeze(t)
	s.PeerLost(p.address) // like gossip
	expect(t, ch)
	p.cmd.Process.Signal(syscall.SIGCONT)
	got, err := say(s, deadline(t, patience), p.address, kindEcho, "thawed", Idempotent(0))
	if err != nil || got != "thawed" {
		t.Fatalf("after SIGCONT: %q, %v", got, err)
	}
}

func TestNeverThere(t *testing.T) {
	if !isolate(t) {
		return
	}
	s := system(t, func(c *Config) { c.ConnectTimeout = 100 * time.Millisecond })
	pid, ch := downs(t, s)
	if _, err := s.Watch(Peer{Address: freePort(t)}, pid); err != nil {
		t.Fatal(err)
	}
	expect(t, ch)
}

// A process dies between the handshake and the start of the watch. The watch reports that process,
// and its successor at the address is not affected.
func TestWatchOfThePredecessor(t *testing.T) {
	if !isolate(t) {
		return
	}
	p := spawn(t, "127.0.0.1:0", "far", 1)
	s := system(t, func(c *Config) { c.ConnectTimeout = patience })
	pid, ch := downs(t, s)
	if _, err := s.Watch(Peer{Address: p.address, ID: "far", Incarnation: 2}, pid); err != nil {
		t.Fatal(err)
	}
	if d := expect(t, ch); d.Peer.ID != "far" || d.Peer.Incarnation != 2 || !d.Restarted {
		t.Errorf("notice %+v", d)
	}
}

// Two systems call each other while one of them closes.
func TestCloseUnderLoad(t *testing.T) {
	if !isolate(t) {
		return
	}
	p := spawn(t, "127.0.0.1:0", "far", 1)
	s := system(t)
	ctx := deadline(t, patience)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for {
				if _, err := say(s, ctx, p.address, kindEcho, "x"); err != nil {
					wantLate(t, err)
					return
				}
			}
		})
	}
	time.Sleep(100 * time.Millisecond)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	wg.Wait()
}

func wantLate(t *testing.T, err error) {
	t.Helper()
	if ctxErr := ErrClosed; err == nil || err.Error() != ctxErr.Error() {
		t.Errorf("got %v, want %v", err, ErrClosed)
	}
}
