// Package sessionlog keeps the turns of sessions in the log of the jobs: one journal for each session,
// one record for each turn, and a last one for its end.
package sessionlog

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/shoal-llm/shoal/internal/jobs"
	"github.com/shoal-llm/shoal/internal/jobs/journal"
	"github.com/shoal-llm/shoal/internal/server/sessions"
)

// Kinds of records.
const (
	KindTurn journal.Kind = 32
	// KindEnd ends a session. All records before it are void, and can be dropped. Later records belong to another session.
	// If the session was deleted before its time, the payload is a sessions.Ended, and the record stays until that time:
	// nodes that are away may have files of the session. Otherwise it can be dropped too.
	KindEnd journal.Kind = 33
)

const (
	// sweepLimit is the deadline for deleting the sessions whose time is over.
	sweepLimit = time.Minute
	// readLimit is the deadline for reading a whole journal.
	readLimit = 30 * time.Second
	// maxEnded is the maximum number of ends that stay. The oldest are dropped first.
	maxEnded = 1024
)

// Store holds the journals of sessions. It fills a book while the job store reads the log. Pass it to
// jobs.StoreConfig, then to Start. All methods may be called concurrently.
type Store struct {
	log  *slog.Logger
	book *sessions.Book
	jobs *jobs.Store // set by Start

	mu      sync.Mutex
	writers map[string]*writer
}

// writer is the journal of a session, with the turns in it. Its lock guards all fields.
type writer struct {
	*journal.Writer
	folded
	removed bool // no longer in the map
}

// folded is the result of reading a journal.
type folded struct {
	state  sessions.State
	ended  uint64         // message of the newest end, up to which the journal can be dropped, or 0 if there is none
	end    sessions.Ended // of that end; zero: it need not stay
	alone  bool           // the messages before that end are dropped
	damage error          // why a record after the end cannot be read
}

var (
	_ jobs.PeerStore    = (*Store)(nil)
	_ sessions.Recorder = (*Store)(nil)
)

// New returns an empty store.
func New(log *slog.Logger) *Store {
	s := &Store{log: log, writers: map[string]*writer{}}
	s.book = sessions.NewBook(s, nil)
	return s
}

// Start sets the store that has the log.
func (s *Store) Start(j *jobs.Store) { s.jobs = j }

// Book returns the sessions.
func (s *Store) Book() *sessions.Book { return s.book }

func (s *Store) writer(id string) *writer {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.writers[id]
	if w == nil {
		w = &writer{Writer: journal.NewWriter(id)}
		s.writers[id] = w
	}
	return w
}

// errRemoved means that the writer is no longer in the map.
var errRemoved = errors.New("sessionlog: the journal was given up")

// with calls f with the writer of a session, and again with a new one while f returns errRemoved. Then it
// removes the writer if the session has no records.
func (s *Store) with(id string, f func(*writer) error) error {
	for {
		w := s.writer(id)
		err := f(w)
		w.Lock()
		if w.Last() == 0 && w.ended == 0 && !w.MustCatchUp() && !w.removed {
			w.removed = true
			s.mu.Lock()
			delete(s.writers, id)
			s.mu.Unlock()
		}
		w.Unlock()
		if !errors.Is(err, errRemoved) {
			return err
		}
	}
}

// Owns implements jobs.PeerStore.
func (s *Store) Owns(name string) bool { return strings.HasPrefix(name, sessions.IDPrefix) }

// Load implements jobs.PeerStore.
func (s *Store) Load(name string, seq uint64, data []byte) {
	w := s.writer(name)
	w.Lock()
	defer w.Unlock()
	before := w.damage
	w.read(&w.Journal, seq, data)
	s.publish(name, w, before)
}

// read adds the next message of a journal. An end counts even if the records before it are damaged, or
// dropped in part.
func (f *folded) read(j *journal.Journal, seq uint64, data []byte) {
	r, err := journal.Decode(j.Name, data)
	if err != nil || r.Kind != KindEnd {
		r, err = j.Verify(seq, data)
	}
	if err == nil {
		err = f.apply(j, &r, seq)
	}
	if err == nil {
		return
	}
	if f.damage == nil {
		f.damage = err
	}
	j.Restart(seq)
}

// apply adds the record of message seq.
func (f *folded) apply(j *journal.Journal, r *journal.Record, seq uint64) error {
	switch {
	case r.Kind == KindEnd: // the next session begins without turns
		*f = folded{ended: seq}
		if len(r.Payload) > 0 && json.Unmarshal(r.Payload, &f.end) != nil {
			f.end = sessions.Ended{}
		}
		j.Restart(seq)
		return nil
	case f.damage != nil:
		return f.damage
	case r.Kind != KindTurn:
		return fmt.Errorf("%w: a record of kind %d in the journal of a session", journal.ErrDamaged, r.Kind)
	}
	if err := f.state.Add(j.Name, r.Payload, r.At); err != nil {
		return fmt.Errorf("%w: %w", journal.ErrDamaged, err)
	}
	return nil
}

// publish gives the turns of the journal to the book. before is the damage that was known.
func (s *Store) publish(id string, w *writer, before error) {
	damage := ""
	if w.damage != nil {
		damage = w.damage.Error()
	}
	if w.damage != nil && before == nil {
		s.log.Error("jobs: damaged record", "session", id, "name", w.state.Name, "turns", w.state.Turns, "error", damage)
	}
	s.book.Replace(id, w.state, damage)
}

// applyTo returns the function that adds the records of a writer.
func (s *Store) applyTo(id string, w *writer) func(*journal.Record, uint64) error {
	return func(r *journal.Record, seq uint64) error {
		if w.removed { // its caller tries again
			return nil
		}
		err := w.apply(&w.Journal, r, seq)
		if err == nil {
			s.publish(id, w, w.damage)
		}
		return err
	}
}

// reread reads the whole journal of a session again. Another process may have ended the session and dropped
// its records, or a record is damaged.
func (s *Store) reread(ctx context.Context, id string, w *writer) error {
	ctx, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	w.Lock()
	defer w.Unlock()
	j, f := journal.Journal{Name: id}, folded{}
	err := s.jobs.ReadJournal(ctx, id, func(seq uint64, data []byte) error {
		f.read(&j, seq, data)
		return nil
	})
	if err != nil {
		return err
	}
	before := w.damage
	w.Journal, w.folded = j, f
	s.publish(id, w, before)
	return nil
}

// Refresh implements jobs.PeerStore.
func (s *Store) Refresh(name string, read func(*journal.Writer, func(*journal.Record, uint64) error) error) {
	err := s.with(name, func(w *writer) error {
		err := read(w.Writer, s.applyTo(name, w))
		w.Lock()
		removed := w.removed
		w.Unlock()
		switch {
		case removed:
			return errRemoved
		case errors.Is(err, journal.ErrDamaged):
			err = s.reread(context.Background(), name, w)
		}
		return err
	})
	if err != nil {
		s.log.Warn("jobs: cannot read the records of a session; its next turn tries again", "session", name, "error", err)
	}
}

// Retains implements jobs.PeerStore.
func (s *Store) Retains(*jobs.Spec) bool { return false }

// Sweep implements jobs.PeerStore. Sessions have times to live of their own.
func (s *Store) Sweep(int64, func(*journal.Writer) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), sweepLimit)
	defer cancel()
	err := s.book.Sweep(ctx)
	s.mu.Lock()
	var all []string
	for id := range s.writers {
		all = append(all, id)
	}
	s.mu.Unlock()
	oldest := s.oldestEnd()
	for _, id := range all {
		err = errors.Join(err, s.with(id, func(w *writer) error {
			w.Lock()
			defer w.Unlock()
			return s.finish(ctx, id, w, w.ended < oldest)
		}))
	}
	return err
}

// oldestEnd returns the number of the first message among the newest ends that stay.
func (s *Store) oldestEnd() uint64 {
	var list []uint64
	s.eachEnd(func(w *writer) { list = append(list, w.ended) })
	if len(list) <= maxEnded {
		return 0
	}
	slices.Sort(list)
	return list[len(list)-maxEnded]
}

// eachEnd calls f with the writer of each session that has ended before its time. Its lock is held.
func (s *Store) eachEnd(f func(*writer)) {
	s.mu.Lock()
	all := slices.Collect(maps.Values(s.writers))
	s.mu.Unlock()
	for _, w := range all {
		w.Lock()
		if w.ended != 0 && w.Last() == w.ended && w.end.Until > s.jobs.Now() {
			f(w)
		}
		w.Unlock()
	}
}

// Ended returns the sessions that were deleted before their time, if no other session has their name. The oldest are first.
func (s *Store) Ended() (list []sessions.Ended) {
	at := map[sessions.Ended]uint64{}
	s.eachEnd(func(w *writer) { at[w.end] = w.ended })
	list = slices.Collect(maps.Keys(at))
	slices.SortFunc(list, func(a, b sessions.Ended) int { return cmp.Compare(at[a], at[b]) })
	return list
}

// finish drops the records of a session that is over: with all the end too, else only if it need not stay. The lock of w
// must be held.
func (s *Store) finish(ctx context.Context, id string, w *writer, all bool) error {
	if w.ended == 0 {
		return nil
	}
	through := w.ended
	if !all && w.Last() == w.ended && w.end.Until > s.jobs.Now() {
		if through--; w.alone {
			return nil
		}
	}
	if err := s.jobs.DropThrough(ctx, id, through); err != nil {
		return err
	}
	if through < w.ended {
		w.alone = true
		return nil
	}
	if w.Last() == w.ended {
		w.Restart(0)
	}
	w.ended, w.end, w.alone = 0, sessions.Ended{}, false
	return nil
}

// errSettled ends a write after the journal was read, and before anything is written.
var errSettled = errors.New("sessionlog: settled")

// Record implements sessions.Recorder.
func (s *Store) Record(ctx context.Context, id string, turns int, payload []byte) error {
	return s.write(ctx, id, KindTurn, payload, func(w *writer) error {
		switch {
		case w.damage != nil:
			return fmt.Errorf("%w: %w", sessions.ErrDamaged, w.damage)
		case w.state.Turns != turns:
			return fmt.Errorf("%w: turn %d", sessions.ErrMoved, w.state.Turns)
		}
		return s.finish(ctx, id, w, true)
	})
}

// Settle implements sessions.Recorder.
func (s *Store) Settle(ctx context.Context, id string) error {
	err := s.write(ctx, id, KindTurn, nil, func(*writer) error { return errSettled })
	if errors.Is(err, errSettled) || errors.Is(err, sessions.ErrMoved) || errors.Is(err, sessions.ErrDamaged) {
		return nil // the book equals the log
	}
	return err
}

// End implements sessions.Recorder. The record that ends the session is appended by compare-and-swap, as
// turns are. Then only the records before it are dropped. If the process ends between both, the next
// one drops them.
func (s *Store) End(ctx context.Context, id string, turns int) error {
	payload, err := s.endOf(id)
	if err != nil {
		return err
	}
	err = s.write(ctx, id, KindEnd, payload, func(w *writer) error {
		if w.state.Turns != turns || w.Last() == 0 || w.ended > 0 && w.Last() == w.ended {
			return fmt.Errorf("%w: turn %d", sessions.ErrMoved, w.state.Turns)
		}
		return nil
	})
	if err != nil {
		return err
	}
	err = s.with(id, func(w *writer) error {
		w.Lock()
		defer w.Unlock()
		return s.finish(ctx, id, w, false)
	})
	if err != nil {
		s.log.Warn("jobs: an ended session still has its records; they are dropped later", "session", id, "error", err)
	}
	return nil
}

// endOf returns the payload of a record that ends a session now.
func (s *Store) endOf(id string) ([]byte, error) {
	w := s.writer(id)
	w.Lock()
	defer w.Unlock()
	if e := w.state.End(); w.state.Turns > 0 && e.Until > s.jobs.Now() {
		return json.Marshal(e)
	}
	return nil, nil
}

// write appends a record to the journal of a session, if check allows it.
func (s *Store) write(ctx context.Context, id string, kind journal.Kind, payload []byte, check func(*writer) error) error {
	return s.with(id, func(w *writer) error {
		r := journal.Record{Kind: kind, At: s.jobs.Now(), Payload: payload}
		err := s.jobs.Write(ctx, w.Writer, r, func() error {
			if w.removed {
				return errRemoved
			}
			return check(w)
		}, s.applyTo(id, w))
		if !errors.Is(err, journal.ErrConflict) && !errors.Is(err, journal.ErrDamaged) || errors.Is(err, sessions.ErrDamaged) {
			return err
		}
		// Another coordinator has changed the session, or a record is damaged: read the log again.
		if err := s.reread(ctx, id, w); err != nil {
			return err
		}
		w.Lock()
		defer w.Unlock()
		if w.damage != nil {
			return fmt.Errorf("%w: %w", sessions.ErrDamaged, w.damage)
		}
		return fmt.Errorf("%w: %w", sessions.ErrMoved, err)
	})
}
