package jobs

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/jobs/journal"
	"github.com/shoal-llm/shoal/internal/jobs/journal/journaltest"
)

// deafLog is a log that stores records, but does not answer while it is deaf.
type deafLog struct {
	journal.Log
	deaf atomic.Bool
}

var errDeaf = errors.New("no responders")

func (l *deafLog) Read(ctx context.Context, name string, after uint64, each func(uint64, []byte) error) error {
	if l.deaf.Load() {
		return errDeaf
	}
	return l.Log.Read(ctx, name, after, each)
}

func (l *deafLog) Append(ctx context.Context, name string, after uint64, data []byte) (uint64, error) {
	seq, err := l.Log.Append(ctx, name, after, data)
	if l.deaf.Load() {
		err = errDeaf
	}
	return seq, err
}

// The answer to a cancellation is lost. The next record shows that the job has ended, and it is not unfinished any more.
func TestEndWithoutAnAnswer(t *testing.T) {
	l := &deafLog{Log: journaltest.NewMemoryLog()}
	s, err := NewStore(t.Context(), l, StoreConfig{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	v, _, err := s.Accept(t.Context(), Spec{Endpoint: "e", Body: []byte(`{}`)})
	if err != nil {
		t.Fatal(err)
	}
	j := s.job(v.id)
	l.deaf.Store(true)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := s.end(ctx, j, journal.Record{Kind: KindCancel, At: 1}); err == nil {
		t.Fatal("no error")
	}
	l.deaf.Store(false)
	if err := s.append(t.Context(), j, journal.Record{Kind: KindStart, Attempt: 1, At: 2}); !errors.Is(err, ErrFinal) {
		t.Fatal(err)
	}
	if n, _ := s.Count(); n != 0 {
		t.Errorf("%d jobs are unfinished", n)
	}
}

// The answer to an acceptance is lost, and then the log is full. The job is accepted.
func TestFullAfterALostAnswer(t *testing.T) {
	l := journaltest.NewMemoryLog()
	s, err := NewStore(t.Context(), l, StoreConfig{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	var stored atomic.Int32
	l.SetFault(func(_ string, _ []byte, done bool) error {
		switch {
		case !done && stored.Load() > 0:
			return journal.ErrFull
		case done:
			stored.Add(1)
			return errDeaf
		}
		return nil
	})
	s.log = &silentOnce{Log: l}
	v, existed, err := s.Accept(t.Context(), Spec{Endpoint: "e", Body: []byte(`{}`)})
	if err != nil || existed || s.job(v.id) == nil {
		t.Fatalf("existed: %v, %v", existed, err)
	}
	l.SetFault(func(string, []byte, bool) error { return journal.ErrFull })
	if _, _, err := s.Accept(t.Context(), Spec{Endpoint: "e", Body: []byte(`{}`)}); !errors.Is(err, journal.ErrFull) {
		t.Errorf("a full log: %v", err)
	}
}

// silentOnce is a log whose first read fails.
type silentOnce struct {
	journal.Log
	reads atomic.Int32
}

func (l *silentOnce) Read(ctx context.Context, name string, after uint64, each func(uint64, []byte) error) error {
	if l.reads.Add(1) == 1 {
		return errDeaf
	}
	return l.Log.Read(ctx, name, after, each)
}
