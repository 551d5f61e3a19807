package coordinator

import (
	"context"
	"errors"
	"maps"
	"strings"
	"testing"
	"time"
)

// TestDrainAnswersWhenItIsRecorded: a coordinator that dies after the answer to a drain has left the drained node in the
// record. So the answer waits for the write, and so does that to the end of a drain.
func TestDrainAnswersWhenItIsRecorded(t *testing.T) {
	requested := make(chan map[string]uint64, 4)
	d := serving(t, func(nodes map[string]uint64) { requested <- nodes })
	for _, step := range []struct {
		name string
		do   func(context.Context, string) error
		want map[string]uint64
	}{{"drain", d.Drain, map[string]uint64{"b": 1}}, {"undrain", d.Undrain, map[string]uint64{}}} {
		answer := make(chan error, 1)
		go func() { answer <- step.do(t.Context(), "b") }()
		nodes := <-requested
		if !maps.Equal(nodes, step.want) {
			t.Fatalf("%s: %v is written, want %v", step.name, nodes, step.want)
		}
		if _, err := d.View(t.Context()); err != nil { // the director has handled the request
			t.Fatal(err)
		}
		select {
		case err := <-answer:
			t.Fatalf("%s: answered before it was recorded: %v", step.name, err)
		case <-time.After(50 * time.Millisecond):
		}
		d.DrainedRecorded(nodes)
		if err := <-answer; err != nil {
			t.Errorf("%s: %v", step.name, err)
		}
	}
}

// TestDrainWithoutRecord: if the store does not record a drain in time, the answer is an error. If another coordinator has
// the lease, the answer names that, to a drain that waits and to a new one.
func TestDrainWithoutRecord(t *testing.T) {
	requested := make(chan map[string]uint64, 4)
	d := serving(t, func(nodes map[string]uint64) { requested <- nodes })
	err := error(context.DeadlineExceeded) // a machine that stands still for a second gives this as well
	for i := 0; i < 4 && errors.Is(err, context.DeadlineExceeded); i++ {
		err = d.Drain(t.Context(), "b")
		<-requested
	}
	if !errors.Is(err, ErrDrainUnrecorded) {
		t.Errorf("a store that does not write: %v", err)
	}
	answer := make(chan error, 1)
	go func() { answer <- d.Drain(t.Context(), "b") }()
	<-requested
	d.Depose("another one has the lease")
	if err := <-answer; err == nil || !strings.Contains(err.Error(), "another one has the lease") {
		t.Errorf("waiting, and deposed: %v", err)
	}
	if err := d.Drain(t.Context(), "a"); err == nil || !strings.Contains(err.Error(), "another one has the lease") {
		t.Errorf("deposed: %v", err)
	}
}

// TestDrainOfARefusedNode: a node that takes no part is not drained, and never will be.
func TestDrainOfARefusedNode(t *testing.T) {
	d := serving(t, nil)
	d.send(&nodeRefused{id: "c", reason: "another build", host: Host{Incarnation: 5}})
	if err := d.Drain(t.Context(), "c"); err == nil || !strings.Contains(err.Error(), "another build") {
		t.Errorf("%v", err)
	}
	if err := d.Drain(t.Context(), "x"); err == nil || !strings.Contains(err.Error(), "there is no node") {
		t.Errorf("%v", err)
	}
	if err := d.Drain(t.Context(), "b"); err != nil { // without a store
		t.Error(err)
	}
}
