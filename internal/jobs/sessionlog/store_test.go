package sessionlog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/jobs"
	"github.com/shoal-llm/shoal/internal/jobs/journal"
	"github.com/shoal-llm/shoal/internal/jobs/journal/journaltest"
	"github.com/shoal-llm/shoal/internal/server/sessions"
	"github.com/shoal-llm/shoal/internal/testutil"
)

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// open reads a log, as a process does at its start.
func open(t *testing.T, l journal.Log) (*Store, *jobs.Store) { t.Helper(); return openAfter(t, l, 0) }

// openAfter is open at a later time.
func openAfter(t *testing.T, l journal.Log, d time.Duration) (*Store, *jobs.Store) {
	t.Helper()
	s := New(quiet)
	j, err := jobs.NewStore(t.Context(), l, jobs.StoreConfig{Logger: quiet, Peers: []jobs.PeerStore{s},
		Now: func() time.Time { return time.Now().Add(d) }})
	if err != nil {
		t.Fatal(err)
	}
	s.Start(j)
	return s, j
}

// made counts the turns, none of which equals another.
var made int32

func turnOf(number int) sessions.Turn {
	made++
	t := sessions.Turn{TTL: 60, Prompt: []int32{int32(number), 1}, Output: []int32{made}}
	if number == 0 {
		t.Head = &sessions.Head{Tenant: "ann", Name: "chat", Policy: "full"}
	}
	return t
}

var id = sessions.ID("ann", "chat")

// add makes one turn.
func add(t *testing.T, s *Store, number int) error {
	t.Helper()
	if err := s.book.Begin(t.Context(), "ann", "chat", number); err != nil {
		return err
	}
	defer s.book.End(id)
	return s.book.Commit(t.Context(), id, number, turnOf(number))
}

func turns(t *testing.T, s *Store) int {
	t.Helper()
	state, err := s.book.State(t.Context(), "ann", "chat")
	if err != nil && !errors.Is(err, sessions.ErrNotFound) {
		t.Fatal(err)
	}
	if n := len(state.IDs); n != 3*state.Turns {
		t.Fatalf("%d tokens in %d turns", n, state.Turns)
	}
	return state.Turns
}

func must(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) && !(want == errAny && err != nil) {
		t.Fatalf("%v, want %v", err, want)
	}
}

// TestStore: turns are there after a restart. A turn whose acknowledgement is lost is found before the
// next one. Of two processes one adds a turn, and the other reads it.
func TestStore(t *testing.T) {
	l := journaltest.NewMemoryLog()
	first, _ := open(t, l)
	must(t, add(t, first, 0), nil)
	must(t, add(t, first, 1), nil)
	second, _ := open(t, l)
	if turns(t, second) != 2 {
		t.Fatal(turns(t, second))
	}
	must(t, add(t, first, 2), nil)
	must(t, add(t, second, 2), sessions.ErrMoved)
	if turns(t, second) != 3 {
		t.Fatal("the turn of another process is not known")
	}
	must(t, add(t, second, 3), nil)
	must(t, add(t, first, 3), sessions.ErrMoved)
	if turns(t, first) != 4 {
		t.Fatal("the turn of another process is not known")
	}

	errNoAnswer := errors.New("no answer")
	for _, stored := range []bool{false, true} {
		ctx, cancel := context.WithCancel(t.Context())
		l.SetFault(func(_ string, _ []byte, done bool) error {
			if done != stored {
				return nil
			}
			cancel()
			return errNoAnswer
		})
		before := turns(t, first)
		must(t, first.book.Begin(t.Context(), "ann", "chat", before), nil)
		if err := first.book.Commit(ctx, id, before, turnOf(before)); err == nil {
			t.Fatal("it was acknowledged")
		}
		first.book.End(id)
		l.SetFault(nil)
		want := before
		if stored {
			want++
		}
		if turns(t, first) != want {
			t.Fatalf("stored %v: %d turns, want %d", stored, turns(t, first), want)
		}
	}
	must(t, add(t, first, 5), nil)

	third, j := open(t, l)
	if turns(t, third) != 6 {
		t.Fatal(turns(t, third))
	}
	must(t, third.book.Delete(t.Context(), "ann", "chat"), nil)
	if n := messages(t, l); n != 1 {
		t.Fatalf("%d messages of an ended session", n)
	}
	must(t, add(t, third, 0), nil)
	if fourth, _ := open(t, l); turns(t, fourth) != 1 {
		t.Fatal("a session that was made again is not there")
	}
	if dead, other := j.Lost(); dead+other > 0 {
		t.Errorf("%v", j.Damage())
	}
}

// TestDamage: a session whose records cannot be read has no turns, until it is deleted.
func TestDamage(t *testing.T) {
	for name, spoil := range map[string]func([]byte) []byte{
		"a bit":         func(b []byte) []byte { b[len(b)-40] ^= 1; return b },
		"another kind":  func([]byte) []byte { r := journal.Record{Kind: 3}; return r.Encode(id) },
		"not a turn":    func([]byte) []byte { r := journal.Record{Kind: KindTurn, Payload: []byte("{}")}; return r.Encode(id) },
		"nothing there": func([]byte) []byte { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			l := journaltest.NewMemoryLog()
			s, _ := open(t, l)
			must(t, add(t, s, 0), nil)
			other := journaltest.NewMemoryLog()
			err := l.Scan(t.Context(), func(name string, _ uint64, b []byte) error {
				_, err := other.Append(t.Context(), name, 0, spoil(slices.Clone(b)))
				return err
			})
			must(t, err, nil)
			s, _ = open(t, other)
			_, err = s.book.State(t.Context(), "ann", "chat")
			must(t, err, sessions.ErrDamaged)
			must(t, s.book.Delete(t.Context(), "ann", "chat"), nil)
			must(t, add(t, s, 0), nil)
			if s, _ = open(t, other); turns(t, s) != 1 {
				t.Fatal("it is not there")
			}
		})
	}
}

// TestRefresh: a process reads the sessions that another one makes. A lookup of an unknown name leaves
// no writer.
func TestRefresh(t *testing.T) {
	l := journaltest.NewMemoryLog()
	leader, _ := open(t, l)
	follower, j := open(t, l)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); j.Follow(ctx) }()
	defer func() { cancel(); <-done }()
	must(t, add(t, leader, 0), nil)
	testutil.Eventually(t, time.Minute, "the turn arrives", func() (bool, string) {
		n := turns(t, follower)
		return n > 0, fmt.Sprint(n, " turns")
	})
	must(t, add(t, follower, 1), nil)
	must(t, j.Lookup(t.Context(), sessions.IDPrefix+"unknown"), nil)
	follower.mu.Lock()
	defer follower.mu.Unlock()
	if len(follower.writers) != 1 {
		t.Errorf("%d writers", len(follower.writers))
	}
}
