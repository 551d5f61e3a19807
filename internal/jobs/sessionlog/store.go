// Package sessionlog keeps the turns of sessions in the log of the jobs: one journal for each session,
// one record for each turn.
package sessionlog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/shoal-llm/shoal/internal/jobs"
	"github.com/shoal-llm/shoal/internal/jobs/journal"
	"github.com/shoal-llm/shoal/internal/server/sessions"
)

// KindTurn is the record of a turn.
const KindTurn journal.Kind = 32

// sweepLimit is the deadline for deleting the sessions whose time is over.
const sweepLimit = time.Minute

// Store holds the journals of sessions. It fills a book while the job store reads the log. Pass it to
// jobs.StoreConfig, then to Start. All methods may be called concurrently.
type Store struct {
	log  *slog.Logger
	book *sessions.Book
	jobs *jobs.Store // set by Start

	mu      sync.Mutex
	writers map[string]*writer
}

// writer is the journal of a session.
type writer struct {
	*journal.Writer
	damaged bool
}

var (
	_ jobs.PeerStore  = (*Store)(nil)
	_ sessions.Keeper = (*Store)(nil)
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

// Owns implements jobs.PeerStore.
func (s *Store) Owns(name string) bool { return strings.HasPrefix(name, sessions.IDPrefix) }

// Load implements jobs.PeerStore.
func (s *Store) Load(name string, seq uint64, data []byte) {
	w := s.writer(name)
	if w.damaged {
		return
	}
	r, err := w.Verify(seq, data)
	if err == nil {
		err = s.apply(name, &r)
	}
	if err != nil {
		s.log.Error("jobs: damaged record", "session", name, "error", err)
		w.damaged = true
		s.book.Damage(name, err.Error())
	}
}

func (s *Store) apply(id string, r *journal.Record) error {
	if r.Kind != KindTurn {
		return fmt.Errorf("%w: a record of kind %d in the journal of a session", journal.ErrDamaged, r.Kind)
	}
	if err := s.book.Apply(id, r.Payload, r.At); err != nil {
		return fmt.Errorf("%w: %w", journal.ErrDamaged, err)
	}
	return nil
}

// Refresh implements jobs.PeerStore.
func (s *Store) Refresh(name string, read func(*journal.Writer, func(*journal.Record, uint64) error)) {
	s.mu.Lock()
	w := s.writers[name]
	s.mu.Unlock()
	if w == nil { // clients may ask for any name
		w = &writer{Writer: journal.NewWriter(name)}
	}
	read(w.Writer, func(r *journal.Record, _ uint64) error { return s.apply(name, r) })
	w.Lock()
	found := w.Last() > 0
	w.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if found && s.writers[name] == nil {
		s.writers[name] = w
	}
}

// Retains implements jobs.PeerStore.
func (s *Store) Retains(*jobs.Spec) bool { return false }

// Sweep implements jobs.PeerStore. Sessions have times to live of their own.
func (s *Store) Sweep(int64, func(*journal.Writer) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), sweepLimit)
	defer cancel()
	return s.book.Sweep(ctx)
}

// errSettled ends a write after the journal was read, and before anything is written.
var errSettled = errors.New("sessionlog: settled")

// Record implements sessions.Keeper.
func (s *Store) Record(ctx context.Context, id string, turns int, payload []byte) error {
	return s.write(ctx, id, payload, func() error {
		if n := s.book.Turns(id); n != turns {
			return fmt.Errorf("%w: turn %d", sessions.ErrMoved, n)
		}
		return nil
	})
}

// Settle implements sessions.Keeper.
func (s *Store) Settle(ctx context.Context, id string) error {
	w := s.writer(id)
	if err := s.write(ctx, id, nil, func() error { return errSettled }); !errors.Is(err, errSettled) {
		return err
	}
	w.Lock()
	empty := w.Last() == 0
	w.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if empty && s.writers[id] == w && s.book.Turns(id) == 0 {
		delete(s.writers, id)
	}
	return nil
}

func (s *Store) write(ctx context.Context, id string, payload []byte, check func() error) error {
	r := journal.Record{Kind: KindTurn, At: s.jobs.Now(), Payload: payload}
	err := s.jobs.Write(ctx, s.writer(id).Writer, r, check, func(r *journal.Record, _ uint64) error { return s.apply(id, r) })
	if errors.Is(err, journal.ErrConflict) { // another coordinator has added a turn, which is applied now
		return fmt.Errorf("%w: %w", sessions.ErrMoved, err)
	}
	return err
}

// Drop implements sessions.Keeper.
func (s *Store) Drop(ctx context.Context, id string) error {
	if err := s.jobs.DropJournal(ctx, s.writer(id).Writer); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.writers, id)
	return nil
}
