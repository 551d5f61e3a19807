package batches

import (
	"context"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/jobs"
	"github.com/shoal-llm/shoal/internal/jobs/journal/journaltest"
	"github.com/shoal-llm/shoal/internal/testutil"
)

// A coordinator that has lost its lease creates a batch. Processes that follow the log receive it.
func TestBatchesOfOthersAreHeardOf(t *testing.T) {
	l := journaltest.NewMemoryLog()
	open := func() *Store {
		s := NewStore(quiet)
		var err error
		if s.jobs, err = jobs.NewStore(t.Context(), l, jobs.StoreConfig{Logger: quiet, Peers: []jobs.PeerStore{s}}); err != nil {
			t.Fatal(err)
		}
		return s
	}
	old, next := open(), open()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); next.jobs.Follow(ctx) }()
	b, _, err := old.create(t.Context(), spec{Input: "f", Endpoint: "e"})
	if err != nil {
		t.Fatal(err)
	}
	testutil.Eventually(t, 2*time.Minute, "the batch of the other process", func() (bool, string) { return next.get(b.id) != nil, "" })
	if next.Uses("f") != b.id || !next.Retains(&jobs.Spec{Batch: b.id}) {
		t.Error("the batch is known, but its file or its jobs are not retained")
	}
	stop()
	<-done
	if third := open(); third.get(b.id) == nil || third.get(b.id).damage != "" {
		t.Errorf("read back: %+v", third.get(b.id))
	}
}
