package events

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoal-llm/shoal/actors/batcher"
	"github.com/shoal-llm/shoal/client/wire"
	"github.com/shoal-llm/shoal/topology"
)

// formatted formats the log: kind, node, epoch, and the cost of each placement end.
func formatted(l *State) string {
	var b strings.Builder
	for _, e := range l.events {
		fmt.Fprintf(&b, "%s %s@%d", e.Kind, e.Node, e.Epoch)
		if c := e.Cost; c != nil {
			fmt.Fprintf(&b, " open=%v next=%d stall=%d %d/%d failed=%d silent=%d again=%d", c.Open,
				c.NextEpoch, c.StallMillis, c.Continued, c.Streams, c.Failed, c.SilentMillis, c.Recomputed+c.Replayed)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func TestEventLog(t *testing.T) {
	at := time.Now()
	after := func(ms int) time.Time { return at.Add(time.Duration(ms) * time.Millisecond) }
	l := new(State)
	l.addNodeEvent(at, wire.EventNodeUp, "a", "")
	l.serves(at, 1, 3)
	l.ended(at, topology.Withdraw{Kind: topology.KindStep, Reason: "node b: timeout"})
	l.addNodeEvent(after(5), topology.KindLost, "b", "node b is gone") // explains the failed step
	before := l.revision
	l.cost(batcher.Outage{Epoch: 1, Streams: 8, Waiting: 8})
	l.serves(after(300), 2, 2)
	l.cost(batcher.Outage{Epoch: 1, Streams: 8, Waiting: 2, SilentMillis: 320, Recomputed: 40, Replayed: 2})
	l.addNodeEvent(after(350), topology.KindLost, "c", "node c is gone") // of a spare node: a separate event
	if got := l.after(before); len(got) != 2 || got[0].Kind != topology.KindLost || got[0].Node != "b" || got[1].Node != "c" {
		t.Errorf("after revision %d: %+v", before, got)
	}
	l.cost(batcher.Outage{Epoch: 1, Streams: 8, Failed: 1, SilentMillis: 400, Recomputed: 60, Replayed: 2})
	if l.cost(batcher.Outage{Epoch: 1, Streams: 8, Failed: 1, SilentMillis: 400, Recomputed: 60, Replayed: 2}) {
		t.Error("an unchanged log was reported as changed")
	}
	// The next placement ends before any request has continued; the waiting requests count for it.
	l.ended(after(900), topology.Withdraw{Kind: topology.KindFenced, Node: "a"})
	l.serves(after(1000), 3, 1)
	l.ended(after(1100), topology.Withdraw{Kind: topology.KindJoined})
	l.cost(batcher.Outage{Epoch: 3, Streams: 1, Waiting: 1})
	want := `node_up a@0
serving @1
node_lost b@1 open=false next=2 stall=300 7/8 failed=1 silent=400 again=62
node_lost c@2
node_fenced a@2 open=false next=3 stall=100 0/0 failed=0 silent=0 again=0
node_joined @3 open=true next=0 stall=0 0/1 failed=0 silent=0 again=0
`
	if got := formatted(l); got != want {
		t.Errorf("the log is\n%swant\n%s", got, want)
	}
	// A successor continues the persisted log and closes the costs that it cannot complete.
	text, err := json.Marshal(l.after(0))
	if err != nil {
		t.Fatal(err)
	}
	e := New()
	e.Restore(context.Background(), func(context.Context) ([]byte, error) { return text, nil }, slog.New(slog.DiscardHandler))
	e.Change(func(l *State, _ time.Time) bool {
		l.Add(wire.ClusterEvent{At: after(5000), Kind: wire.EventTakeover, Cost: &wire.Cost{Open: true}})
		l.serves(after(6500), 4, 2)
		return true
	})
	got := formatted(&e.log)
	tail := "node_joined @3 open=false next=0 stall=0 0/1 failed=0 silent=0 again=0\n" +
		"coordinator_took_over @3 open=false next=4 stall=1500 0/0 failed=0 silent=0 again=0\n"
	if !strings.HasSuffix(got, tail) {
		t.Errorf("the successor's log ends with\n%s", got)
	}
	if n := len(e.log.events); n != 7 || e.log.events[n-1].ID != 7 || e.log.events[n-1].Revision <= l.revision {
		t.Errorf("%d events, the newest is %+v", n, e.log.events[n-1])
	}
}

func TestEventLogIsBounded(t *testing.T) {
	l := new(State)
	for i := range 3 * keptEvents {
		l.addNodeEvent(time.Now(), wire.EventNodeUp, fmt.Sprint(i), "")
	}
	if got := l.after(0); len(got) != keptEvents || got[keptEvents-1].ID != 3*keptEvents ||
		len(l.after(l.revision)) != 0 || len(l.after(l.revision+1)) != keptEvents {
		t.Errorf("%d events are kept", len(got))
	}
	s := new(samples)
	for range 2*keptSamples + 7 {
		s.add(&wire.ClusterState{})
	}
	got := s.from(0)
	if len(got) != keptSamples || got[0].Index != keptSamples+7 || got[keptSamples-1].Index != 2*keptSamples+6 {
		t.Errorf("%d samples, from %d to %d", len(got), got[0].Index, got[len(got)-1].Index)
	}
	if got := s.from(2*keptSamples + 5); len(got) != 2 || len(s.from(s.next)) != 0 || len(s.from(1<<62)) != keptSamples {
		t.Errorf("from an index on: %d samples", len(got))
	}
}

// TestEventsAreWrittenDown: one write contains all changes since the last, and a later change is
// written too.
func TestEventsAreWrittenDown(t *testing.T) {
	e := New()
	wrote := make(chan int, 10)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	e.Add(wire.EventNodeUp, "a", "")
	go func() {
		defer close(done)
		e.Persist(ctx, func(_ context.Context, b []byte) error {
			var list []wire.ClusterEvent
			err := json.Unmarshal(b, &list)
			wrote <- len(list)
			return err
		}, slog.New(slog.DiscardHandler))
	}()
	next := func() int {
		select {
		case n := <-wrote:
			return n
		case <-time.After(20 * time.Second):
			t.Fatal("nothing is written")
		}
		return 0
	}
	if n := next(); n != 1 {
		t.Errorf("%d events were written", n)
	}
	e.Add(wire.EventNodeUp, "b", "")
	e.Add(wire.EventNodeUp, "c", "")
	if n := next(); n != 3 {
		t.Errorf("%d events were written after two more", n)
	}
	cancel()
	<-done
}

// TestPersistRetries: a write that fails is tried again although nothing changes, because the store is often unavailable
// just when events happen.
func TestPersistRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New()
		var tries int
		var last []byte
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go l.Persist(ctx, func(_ context.Context, b []byte) error {
			if tries++; tries < 4 {
				return errors.New("unavailable")
			}
			last = b
			return nil
		}, slog.New(slog.DiscardHandler))
		l.Add("node_up", "a", "")
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if tries != 4 || !strings.Contains(string(last), "node_up") {
			t.Errorf("%d writes, the last good one is %q; want 4: one that succeeds after three that fail", tries, last)
		}
		cancel()
		synctest.Wait()
	})
}
