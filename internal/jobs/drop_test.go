package jobs

import (
	"context"
	"testing"

	"github.com/shoal-llm/shoal/internal/jobs/journal"
	"github.com/shoal-llm/shoal/internal/jobs/journal/journaltest"
)

// droppingLog calls dropped after it has dropped a journal.
type droppingLog struct {
	journal.Log
	dropped func()
	read    chan struct{}
}

func (l *droppingLog) Drop(ctx context.Context, name string) error {
	err := l.Log.Drop(ctx, name)
	l.dropped()
	return err
}

func (l *droppingLog) Read(ctx context.Context, name string, after uint64, each func(uint64, []byte) error) error {
	err := l.Log.Read(ctx, name, after, each)
	if name != anchorName {
		select {
		case l.read <- struct{}{}:
		default:
		}
	}
	return err
}

// A request is repeated while its job is deleted. It creates the job again.
func TestAcceptedWhileDeleted(t *testing.T) {
	l := &droppingLog{Log: journaltest.NewMemoryLog(), read: make(chan struct{}, 1)}
	s, err := NewStore(t.Context(), l, StoreConfig{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	spec := Spec{Endpoint: "e", Body: []byte(`{}`), Key: "k"}
	v, _, err := s.Accept(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.end(t.Context(), s.job(v.id), journal.Record{Kind: KindCancel, At: 1}); err != nil {
		t.Fatal(err)
	}
	again := make(chan error, 1)
	l.dropped = func() {
		go func() {
			w, existed, err := s.Accept(t.Context(), spec)
			if err == nil && (existed || w.state.Phase != Queued) {
				t.Errorf("existed: %v, it is %s", existed, w.state.Phase)
			}
			again <- err
		}()
		<-l.read // of a journal that is no more
	}
	if err := s.drop(t.Context(), v.id); err != nil {
		t.Fatal(err)
	}
	if err := <-again; err != nil {
		t.Fatal(err)
	}
	if w := s.job(v.id); w == nil || w.snapshot().state.Phase != Queued {
		t.Error("the job is gone")
	}
	third, err := NewStore(t.Context(), l, StoreConfig{Logger: quiet})
	if err != nil || third.job(v.id) == nil {
		t.Errorf("read back: %v, %v", third.job(v.id), err)
	}
}
