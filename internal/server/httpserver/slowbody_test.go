package httpserver

import (
	"errors"
	"io"
	"os"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/server/jsonbody"
)

// sender is a body that brings a number of bytes at intervals, under the deadline of
// its connection.
type sender struct {
	now, due time.Time
	every    time.Duration
	bytes    int // a piece
	left     int // altogether
}

func (s *sender) Close() error { return nil }

func (s *sender) Read(p []byte) (int, error) {
	at := s.now.Add(s.every)
	if s.every < 0 || at.After(s.due) { // it stops, or is late
		s.now = s.due
		return 0, os.ErrDeadlineExceeded
	}
	n := min(s.bytes, s.left, len(p))
	s.now, s.left = at, s.left-n
	if s.left == 0 {
		return n, io.EOF
	}
	return n, nil
}

// TestPace: a body that keeps coming has all the time that it takes, one that does not
// has a minute.
func TestPace(t *testing.T) {
	const minute = time.Minute
	for _, c := range []struct {
		what        string
		every       time.Duration
		piece, size int
		busy        time.Duration // of the server, between two reads
		slow        bool
		took        time.Duration // of waiting
	}{
		{"one piece", time.Second, 100, 100, 0, false, time.Second},
		{"silence", -1, 1, 100, 0, true, minute},
		{"a byte a second, of few", time.Second, 1, 50, 0, false, 50 * time.Second},
		{"a byte a second", time.Second, 1, 100, 0, true, minute},
		{"a byte a minute", minute, 1, 100, 0, true, minute},
		{"200 MiB at 1 Mbit/s", 32 * time.Millisecond, 4000, 200 << 20, 0, false, 52429 * 32 * time.Millisecond},
		{"the same to a store that takes its time", 32 * time.Millisecond, 4000, 200 << 20, 2 * minute, false, 52429 * 32 * time.Millisecond},
		{"1 MiB a minute", minute / 256, 4096, 4 << 20, 0, false, 4 * minute},
		{"less", minute/256 + time.Millisecond, 4096, 4 << 20, 0, true, minute},
	} {
		began := time.Unix(0, 0)
		s := &sender{now: began, every: c.every, bytes: c.piece, left: c.size}
		d := jsonbody.DefaultLimits()
		b := &pacedBody{ReadCloser: s, deadline: func(at time.Time) error { s.due = at; return nil }, now: func() time.Time { return s.now },
			limit: d.ReadTimeout, bytes: d.ReadBytes, left: d.ReadTimeout}
		var err error
		var busy time.Duration
		p := make([]byte, 1<<15)
		for err == nil {
			_, err = b.Read(p)
			s.now, busy = s.now.Add(c.busy), busy+c.busy
		}
		if took := s.now.Sub(began) - busy; errors.Is(err, ErrSlowBody) != c.slow || took != c.took || !c.slow && err != io.EOF {
			t.Errorf("%s: %v after %v, want slow %v after %v", c.what, err, took, c.slow, c.took)
		}
		s.due = time.Time{}
		if _, again := b.Read(p); again != err || !s.due.IsZero() {
			t.Errorf("%s: read again: %v, want %v and no deadline", c.what, again, err)
		}
	}
}
