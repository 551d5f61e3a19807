package sessionlog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/jobs/journal"
	"github.com/shoal-llm/shoal/internal/jobs/journal/journaltest"
	"github.com/shoal-llm/shoal/internal/jobs/journal/natstest"
	"github.com/shoal-llm/shoal/internal/server/sessions"
	"github.com/shoal-llm/shoal/internal/testutil"
)

// faulty is a log that fails at chosen points.
type faulty struct {
	journal.Log
	drop  func(seq uint64) error                          // before messages are dropped; an error keeps them
	spoil func(journal string, seq uint64, b []byte) bool // the message is read with another bit
}

func (l *faulty) DropThrough(ctx context.Context, name string, seq uint64) error {
	if l.drop != nil {
		if err := l.drop(seq); err != nil {
			return err
		}
	}
	return l.Log.DropThrough(ctx, name, seq)
}

func (l *faulty) Read(ctx context.Context, name string, after uint64, each func(uint64, []byte) error) error {
	return l.Log.Read(ctx, name, after, func(seq uint64, b []byte) error {
		if b = slices.Clone(b); l.spoil != nil && l.spoil(name, seq, b) {
			b[len(b)-40] ^= 1
		}
		return each(seq, b)
	})
}

// jetStream opens a log on disk.
func jetStream(t *testing.T) journal.Log {
	t.Helper()
	nc, _ := natstest.Alone(t, t.TempDir(), 0)
	l, err := journal.OpenJetStream(t.Context(), nc, 1<<20, 1)
	must(t, err, nil)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// messages returns the number of messages of the session in a log.
func messages(t *testing.T, l journal.Log) (n int) {
	t.Helper()
	must(t, l.Read(t.Context(), id, 0, func(uint64, []byte) error { n++; return nil }), nil)
	return n
}

// ways end a session.
func ways() map[string]func(*testing.T, *Store) error {
	return map[string]func(*testing.T, *Store) error{
		"delete": func(t *testing.T, s *Store) error { return s.book.Delete(t.Context(), "ann", "chat") },
		"expiry": func(_ *testing.T, s *Store) error { return s.Sweep(0, nil) },
	}
}

// old makes the times to live of a store's sessions be over.
func old(s *Store) {
	s.book = sessions.NewBook(s, func() time.Time { return time.Now().Add(time.Hour) })
	for id, w := range s.writers {
		s.publish(id, w, nil)
	}
}

// TestStaleCoordinatorEndsNoTurn: a coordinator that lost its lease without noticing ends a session that its
// successor has continued. The turns stay, and the stale coordinator reads them.
func TestStaleCoordinatorEndsNoTurn(t *testing.T) {
	for name, end := range ways() {
		t.Run(name, func(t *testing.T) {
			l := journaltest.NewMemoryLog()
			stale, _ := open(t, l)
			must(t, add(t, stale, 0), nil)
			leader, _ := open(t, l)
			must(t, add(t, leader, 1), nil)
			if name == "expiry" {
				old(stale)
				must(t, end(t, stale), nil)
			} else {
				must(t, end(t, stale), sessions.ErrMoved)
				if turns(t, stale) != 2 {
					t.Error("the turn of the successor is not known")
				}
			}
			must(t, add(t, leader, 2), nil)
			if next, _ := open(t, l); turns(t, next) != 3 {
				t.Fatalf("%d turns, want 3", turns(t, next))
			}
		})
	}
}

// TestTurnAfterTheEnd: another process begins the session again after its end was written, and before its
// records are dropped. The new turns stay.
func TestTurnAfterTheEnd(t *testing.T) {
	for name, end := range ways() {
		run := func(t *testing.T, log journal.Log) {
			l := &faulty{Log: log}
			first, _ := open(t, l)
			must(t, add(t, first, 0), nil)
			must(t, add(t, first, 1), nil)
			if name == "expiry" {
				old(first)
			}
			l.drop = func(uint64) error {
				l.drop = nil
				second, _ := open(t, l)
				if turns(t, second) != 0 {
					t.Error("it goes on after its end")
				}
				must(t, add(t, second, 0), nil)
				must(t, add(t, second, 1), nil)
				must(t, add(t, second, 2), nil)
				return nil
			}
			must(t, end(t, first), nil)
			if l.drop != nil {
				t.Fatal("nothing was dropped")
			}
			if third, _ := open(t, l); turns(t, third) != 3 || messages(t, l) != 3 {
				t.Fatalf("%d turns in %d messages, want 3", turns(t, third), messages(t, l))
			}
			// The first process has not read the new session yet.
			must(t, add(t, first, 0), sessions.ErrMoved)
			if name == "delete" && turns(t, first) != 3 {
				t.Fatalf("%d turns, want 3", turns(t, first))
			}
		}
		t.Run(name, func(t *testing.T) { run(t, journaltest.NewMemoryLog()) })
		t.Run(name+" with JetStream", func(t *testing.T) { run(t, jetStream(t)) })
	}
}

// TestCrashBeforeTheDrop: a process ends after it wrote the end, and before or while it drops the records.
func TestCrashBeforeTheDrop(t *testing.T) {
	for name, some := range map[string]uint64{"nothing dropped": 0, "one dropped": 1, "all but the end": 3} {
		t.Run(name, func(t *testing.T) {
			l := &faulty{Log: journaltest.NewMemoryLog()}
			s, _ := open(t, l)
			for i := range 3 {
				must(t, add(t, s, i), nil)
			}
			l.drop = func(uint64) error {
				must(t, l.Log.DropThrough(t.Context(), id, some), nil)
				return errors.New("the process ends")
			}
			must(t, s.book.Delete(t.Context(), "ann", "chat"), nil) // it is over
			if turns(t, s) != 0 || messages(t, l) != 4-int(some) {
				t.Fatalf("%d turns, %d messages", turns(t, s), messages(t, l))
			}
			must(t, add(t, s, 0), errAny) // not while its end may come back
			l.drop = nil

			swept, _ := open(t, l)
			if turns(t, swept) != 0 {
				t.Fatal("it is there again")
			}
			must(t, swept.Sweep(0, nil), nil)
			if n := messages(t, l); n != 1 {
				t.Fatalf("%d messages after the sweep, want the end", n)
			}
			swept, _ = openAfter(t, l, 2*time.Minute)
			must(t, swept.Sweep(0, nil), nil)
			if n := messages(t, l); n != 0 || len(swept.writers) != 0 {
				t.Fatalf("%d messages, %d writers after the time of the session", n, len(swept.writers))
			}
			must(t, add(t, s, 0), nil)
			if next, _ := open(t, l); turns(t, next) != 1 || messages(t, l) != 1 {
				t.Fatalf("%d messages", messages(t, l))
			}
		})
	}
}

// TestEndsStay: the next process knows the sessions that were deleted before their time, because nodes that are away may
// have files of them. A new session of the name, and the end of the time, drop the record.
func TestEndsStay(t *testing.T) {
	for name, log := range map[string]func() journal.Log{"memory": func() journal.Log { return journaltest.NewMemoryLog() },
		"JetStream": func() journal.Log { return jetStream(t) }} {
		t.Run(name, func(t *testing.T) {
			l := log()
			known := func(s *Store, want string) {
				t.Helper()
				got := ""
				for _, e := range s.Ended() {
					got += e.Tenant + "/" + e.Name + " "
				}
				if got != want {
					t.Fatalf("%q have ended, want %q", got, want)
				}
			}
			s, _ := open(t, l)
			must(t, add(t, s, 0), nil)
			must(t, add(t, s, 1), nil)
			known(s, "")
			must(t, s.book.Delete(t.Context(), "ann", "chat"), nil)
			known(s, "ann/chat ")
			for range 2 {
				next, _ := open(t, l)
				must(t, next.Sweep(0, nil), nil)
				known(next, "ann/chat ")
				if turns(t, next) != 0 || messages(t, l) != 1 {
					t.Fatalf("%d turns in %d messages", turns(t, next), messages(t, l))
				}
				s = next
			}
			must(t, add(t, s, 0), nil)
			known(s, "")
			next, _ := open(t, l)
			if known(next, ""); turns(t, next) != 1 || messages(t, l) != 1 {
				t.Fatalf("%d turns in %d messages", turns(t, next), messages(t, l))
			}
			must(t, next.book.Delete(t.Context(), "ann", "chat"), nil)
			later, _ := openAfter(t, l, 2*time.Minute)
			known(later, "")
			must(t, later.Sweep(0, nil), nil)
			if messages(t, l) != 0 || len(later.writers) != 0 {
				t.Fatalf("%d messages, %d writers", messages(t, l), len(later.writers))
			}
			must(t, add(t, later, 0), nil)
		})
	}
}

// TestEndsAreBounded: the oldest ends are dropped first.
func TestEndsAreBounded(t *testing.T) {
	l := journaltest.NewMemoryLog()
	s, _ := open(t, l)
	for i := range maxEnded + 5 {
		name := fmt.Sprint("s", i)
		must(t, s.book.Begin(t.Context(), "ann", name, 0), nil)
		turn := turnOf(0)
		turn.Head.Name = name
		must(t, s.book.Commit(t.Context(), sessions.ID("ann", name), 0, turn), nil)
		s.book.End(sessions.ID("ann", name))
		must(t, s.book.Delete(t.Context(), "ann", name), nil)
	}
	must(t, s.Sweep(0, nil), nil)
	next, _ := open(t, l)
	list := next.Ended()
	if len(list) != maxEnded || list[0].Name != "s5" || list[maxEnded-1].Name != fmt.Sprint("s", maxEnded+4) {
		t.Fatalf("%d ends, the first is that of %s", len(list), list[0].Name)
	}
}

// errAny matches every error.
var errAny = errors.New("any error")

// TestLostAnswerToTheEnd: the answer to an end is lost. The session is as the log has it.
func TestLostAnswerToTheEnd(t *testing.T) {
	for _, stored := range []bool{false, true} {
		l := journaltest.NewMemoryLog()
		s, _ := open(t, l)
		must(t, add(t, s, 0), nil)
		ctx, cancel := context.WithCancel(t.Context())
		l.SetFault(func(_ string, _ []byte, done bool) error {
			if done != stored {
				return nil
			}
			cancel()
			return errors.New("no answer")
		})
		if err := s.book.Delete(ctx, "ann", "chat"); err == nil {
			t.Fatal("it was acknowledged")
		}
		l.SetFault(nil)
		want := 1
		if stored {
			want = 0
		}
		if turns(t, s) != want {
			t.Fatalf("stored %v: %d turns", stored, turns(t, s))
		}
		must(t, add(t, s, want), nil)
		if next, _ := open(t, l); turns(t, next) != want+1 {
			t.Fatalf("stored %v: %d turns after a restart", stored, turns(t, next))
		}
	}
}

// TestEndedByAnother: another process ends a session, and may begin it again. This process has read
// neither.
func TestEndedByAnother(t *testing.T) {
	for _, again := range []bool{false, true} {
		l := journaltest.NewMemoryLog()
		stale, _ := open(t, l)
		must(t, add(t, stale, 0), nil)
		must(t, add(t, stale, 1), nil)
		leader, _ := open(t, l)
		must(t, leader.book.Delete(t.Context(), "ann", "chat"), nil)
		want := 0
		if again {
			want = 1
			must(t, add(t, leader, 0), nil)
		}
		must(t, add(t, stale, 2), sessions.ErrMoved)
		if turns(t, stale) != want {
			t.Fatalf("again %v: %d turns", again, turns(t, stale))
		}
		must(t, add(t, stale, want), nil)
		if next, _ := open(t, l); turns(t, next) != want+1 {
			t.Fatalf("again %v: %d turns", again, turns(t, next))
		}
	}
}

// TestLiveDamage: a record is damaged that another process has just written. The session reports it, and is not
// shortened. Other sessions go on. The damaged one can be deleted.
func TestLiveDamage(t *testing.T) {
	for at := range 3 {
		l := &faulty{Log: journaltest.NewMemoryLog()}
		leader, _ := open(t, l)
		known := 1
		for i := range known {
			must(t, add(t, leader, i), nil)
		}
		follower, j := open(t, l)
		l.spoil = func(name string, seq uint64, _ []byte) bool { return name == id && int(seq) == at+1 }
		for i := known; i < 3; i++ {
			must(t, add(t, leader, i), nil)
		}
		bob := turnOf(0)
		bob.Head.Tenant = "bob"
		must(t, leader.book.Begin(t.Context(), "bob", "chat", 0), nil)
		must(t, leader.book.Commit(t.Context(), sessions.ID("bob", "chat"), 0, bob), nil)
		leader.book.End(sessions.ID("bob", "chat"))

		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); j.Follow(ctx) }()
		testutil.Eventually(t, time.Minute, "the session of another key goes on", func() (bool, string) {
			_, err := follower.book.State(t.Context(), "bob", "chat")
			return err == nil, fmt.Sprint(err)
		})
		cancel()
		<-done
		s, err := follower.book.State(t.Context(), "ann", "chat")
		if at < known { // the follower has read this record before it was damaged
			if err != nil || s.Turns != 3 {
				t.Fatalf("%d turns, %v", s.Turns, err)
			}
			continue
		}
		must(t, err, sessions.ErrDamaged)
		shown, err := follower.book.Get(t.Context(), "ann", "chat")
		if err != nil || shown.Status != "damaged" || shown.Name != "chat" {
			t.Fatalf("%+v, %v", shown, err)
		}
		must(t, add(t, follower, at), sessions.ErrMoved)
		must(t, follower.book.Delete(t.Context(), "ann", "chat"), nil)
		if messages(t, l) != 1 {
			t.Fatalf("%d messages", messages(t, l))
		}
		must(t, add(t, leader, 3), sessions.ErrMoved)
		l.spoil = nil
		must(t, add(t, follower, 0), nil)
		if next, _ := open(t, l); turns(t, next) != 1 {
			t.Fatal("it cannot begin again")
		}
	}
}

// TestDamagedEnd: the end of a session is damaged, after the records before it were dropped. The records of
// the next session follow it. They are not read, and the error names the damaged record.
func TestDamagedEnd(t *testing.T) {
	ended, next, l := &faulty{Log: journaltest.NewMemoryLog()}, journaltest.NewMemoryLog(), journaltest.NewMemoryLog()
	ended.drop = func(uint64) error { return errors.New("the process ends") }
	s, _ := open(t, ended)
	must(t, add(t, s, 0), nil)
	must(t, s.book.Delete(t.Context(), "ann", "chat"), nil)
	s, _ = open(t, next)
	for i := range 2 {
		must(t, add(t, s, i), nil)
	}
	var all [][]byte
	for _, from := range []journal.Log{ended, next} {
		must(t, from.Read(t.Context(), id, 0, func(_ uint64, b []byte) error { all = append(all, slices.Clone(b)); return nil }), nil)
	}
	if len(all) != 4 {
		t.Fatalf("%d messages", len(all))
	}
	all[1][len(all[1])-40] ^= 1
	for i, b := range all[1:] {
		_, err := l.Append(t.Context(), id, uint64(i), b)
		must(t, err, nil)
	}
	s, _ = open(t, l)
	_, err := s.book.State(t.Context(), "ann", "chat")
	must(t, err, sessions.ErrDamaged)
	if !strings.Contains(err.Error(), "(message 1)") {
		t.Error(err)
	}
	if n := s.writers[id].state.Turns; n != 0 {
		t.Errorf("%d turns", n)
	}
}
