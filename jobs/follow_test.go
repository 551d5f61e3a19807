package jobs

import (
	"context"
	"testing"
	"time"

	"shoal/jobs/journal"
)

// A coordinator that has lost its lease, and does not know it yet, accepts and
// cancels jobs: whoever follows the log has them all.
func TestFollowTakesUpWhatOthersWrite(t *testing.T) {
	l := journal.NewMemoryLog()
	old, err := NewStore(t.Context(), l, StoreConfig{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	before, _, err := old.Accept(t.Context(), Spec{Endpoint: "e", Body: []byte(`{"a":0}`)})
	if err != nil {
		t.Fatal(err)
	}
	next, err := NewStore(t.Context(), l, StoreConfig{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); next.Follow(ctx) }()
	late, _, err := old.Accept(t.Context(), Spec{Endpoint: "e", Body: []byte(`{"a":1}`), Key: "k"})
	if err != nil {
		t.Fatal(err)
	}
	if err := old.end(t.Context(), old.job(before.id), journal.Record{Kind: KindCancel, At: 1}); err != nil {
		t.Fatal(err)
	}
	mine, _, err := next.Accept(t.Context(), Spec{Endpoint: "e", Body: []byte(`{"a":2}`)})
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(time.Millisecond) {
		j, gone := next.job(late.id), next.job(before.id).view().state.Phase
		waiting, total := next.Count()
		if j != nil && gone == Cancelled && waiting == 2 && total == 3 && next.job(mine.id) != nil {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the late job: %v, the cancelled one: %s, %d of %d jobs wait", j, gone, waiting, total)
		}
	}
	again, existed, err := next.Accept(t.Context(), Spec{Endpoint: "e", Body: []byte(`{"a":1}`), Key: "k"})
	if err != nil || !existed || again.id != late.id {
		t.Errorf("the key of the late job gives %s, existed %v, %v", again.id, existed, err)
	}
	stop()
	<-done
}

// journal.Copy keeps every journal whole, whatever was in the place before.
func TestCopy(t *testing.T) {
	from, to := journal.NewMemoryLog(), journal.NewMemoryLog()
	a, err := NewStore(t.Context(), from, StoreConfig{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for range 3 {
		v, _, err := a.Accept(t.Context(), Spec{Endpoint: "e", Body: []byte(`{}`)})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, v.id)
	}
	if err := a.append(t.Context(), a.job(ids[1]), journal.Record{Kind: KindStart, Attempt: 1, At: 1}); err != nil {
		t.Fatal(err)
	}
	if _, err := to.Append(t.Context(), ids[0], 0, []byte("of a copy that was cut short")); err != nil {
		t.Fatal(err)
	}
	if n, err := journal.Copy(t.Context(), from, to); n != 4 || err != nil {
		t.Fatalf("%d messages, %v", n, err)
	}
	b, err := NewStore(t.Context(), to, StoreConfig{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	for i, id := range ids {
		want, got := a.job(id).view().state, b.job(id).view()
		if got.state != want || got.damage != "" {
			t.Errorf("job %d is %+v (%s), was %+v", i, got.state, got.damage, want)
		}
	}
}
