package rpc

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/shoal-llm/shoal/internal/testutil"
)

func TestCall(t *testing.T) {
	if !isolate(t) {
		return
	}
	p := spawn(t, "127.0.0.1:0", "far", 1)
	s := system(t)
	mustSay(t, s, p.address, "hello")

	times := make([]time.Duration, 300)
	for i := range times {
		begun := time.Now()
		mustSay(t, s, p.address, "again")
		times[i] = time.Since(begun)
	}
	slices.Sort(times)
	t.Logf("call: median %v, p99 %v", times[150], times[297])
	if times[0] > 40*time.Millisecond { // on a loaded machine only the fastest call shows the real cost
		t.Errorf("no call took less than %v: each waits for a timer", times[0])
	}

	_, err := say(s, deadline(t, patience), p.address, kindMissing, "")
	wantErr(t, err, ErrUnknownKind)
	if !strings.Contains(err.Error(), fmt.Sprintf("unknown kind 99 (peer speaks version %d)", Version)) {
		t.Errorf("error %q", err)
	}
	_, err = say(s, deadline(t, patience), p.address, kindPanic, "boom")
	wantErr(t, err, ErrPanic)
	mustSay(t, s, p.address, "after the panic")

	wantErr(t, s.Call(deadline(t, patience), s.PID(p.address, "nobody"), kindEcho, nil, nil), ErrNoActor)
	_, err = say(s, deadline(t, 50*time.Millisecond), p.address, kindSilent, "")
	wantErr(t, err, ErrTimeout)
	wantErr(t, err, context.DeadlineExceeded)

	large := strings.Repeat("x", MaxPayload-100)
	mustSay(t, s, p.address, large)
	_, err = say(s, deadline(t, patience), p.address, kindEcho, large+large)
	wantErr(t, err, ErrTooLarge)

	if err := s.Send(deadline(t, patience), s.PID(p.address, "echo"), kindEcho, wrapperspb.String("one way")); err != nil {
		t.Fatal(err)
	}
	mustSay(t, s, p.address, "last")
	testutil.Eventually(t, patience, "the outbox is empty", func() (bool, string) { // a message counts until it is written
		o, ok := s.outboxes.Load(p.address)
		if !ok {
			return false, "there is no outbox"
		}
		messages, bytes := o.(*outbox).messages.Load(), o.(*outbox).bytes.Load()
		return messages == 0 && bytes == 0, fmt.Sprintf("it has %d messages of %d bytes", messages, bytes)
	})
}

// A peer that does not read fills its outbox up to the bound.
func TestFrozenPeerIsBounded(t *testing.T) {
	if !isolate(t) {
		return
	}
	p := spawn(t, "127.0.0.1:0", "far", 1)
	s := system(t, func(c *Config) { c.QueueBytes, c.QueueMessages = 4<<20, 1000 })
	mustSay(t, s, p.address, "hello")
	p.freeze(t)
	body := wrapperspb.String(strings.Repeat("x", 100_000))
	var err error
	sent := 0
	for ctx := deadline(t, patience); err == nil && sent < 5000; sent++ {
		err = s.Send(ctx, s.PID(p.address, "echo"), kindEcho, body)
	}
	wantErr(t, err, ErrBusy)
	t.Logf("refused after %d messages of 100 kB", sent)
	p.cmd.Process.Signal(syscall.SIGCONT)
	got, err := say(s, deadline(t, patience), p.address, kindEcho, "thawed", Idempotent(0))
	if err != nil || got != "thawed" {
		t.Fatalf("%q, %v", got, err)
	}
}
