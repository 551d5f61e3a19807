package jobs

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/shoal-llm/shoal/internal/jobs/door"
	"github.com/shoal-llm/shoal/internal/jobs/journal"
)

// followPause is between two tries to read a log.
const followPause = time.Second

// Follow takes up what somebody else writes to a log that several processes can
// reach, until ctx ends. A coordinator that has lost its lease and does not know
// it yet may still accept a job: it is in the log, so it is accepted, and whoever
// reads the log runs it.
func (s *Store) Follow(ctx context.Context) {
	s.followed.Store(true)
	defer s.followed.Store(false)
	after := s.scanned // not the newest known: this process may have written since
	for ctx.Err() == nil {
		err := s.log.Follow(ctx, after, func(name string, seq uint64) {
			s.heard(ctx, name, seq)
			after = max(after, seq)
		})
		if ctx.Err() != nil {
			return
		}
		s.cfg.Logger.Debug("jobs: the log cannot be followed, trying again", "error", err)
		t := time.NewTimer(followPause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
		}
	}
}

// Ask reads a journal that is not known, if others may write to the log: what one of them
// has accepted is there before the log is followed that far, and who follows hears nothing for
// seconds when the server dies from which it reads. The error says that the log gave no answer.
func (s *Store) Ask(ctx context.Context, name string) error {
	if !s.followed.Load() || !journal.IsName(name) {
		return nil
	}
	ctx, cancel := context.WithTimeout(journal.Hurried(ctx, door.AcceptLimit), door.AcceptLimit)
	defer cancel()
	s.heard(ctx, name, math.MaxUint64)
	if s.job(name) != nil {
		s.cfg.Logger.Info("jobs: one that another process has accepted was asked for before it was heard of", "job", name)
	}
	return ctx.Err()
}

// heard reads what a journal has beyond what is known, if anything: mostly it
// is this process's own record.
func (s *Store) heard(ctx context.Context, name string, seq uint64) {
	if name == anchorName {
		return
	}
	if b := s.cfg.Beside; b != nil && b.Owns(name) {
		b.Heard(name, func(w *journal.Writer, apply func(*journal.Record, uint64) error) {
			for {
				w.Lock()
				_, err := s.catchUp(ctx, w, seq, apply)
				w.Unlock()
				if !again(ctx, err) {
					return
				}
			}
		})
		return
	}
	j, read := s.hear(ctx, name, seq)
	if !read {
		s.forget(j) // nothing is there, unless it is known
		return
	}
	switch p := j.view().state.Phase; {
	case p == "":
		s.forget(j)
	case p.Final():
		s.deactivate(j)
	default:
		s.activate(j)
		s.Wake()
	}
}

// hear has the entry of a job read its journal, a new one if there is none; false: there was
// nothing new.
func (s *Store) hear(ctx context.Context, name string, seq uint64) (j *job, read bool) {
	for {
		s.mu.Lock()
		if j = s.jobs[name]; j == nil {
			j = newJob(name)
			s.jobs[name] = j
		}
		s.mu.Unlock()
		j.journal.Lock()
		// A request that was given up while this waited for it has taken the entry away.
		gone, err := j.gone, error(nil)
		if !gone {
			read, err = s.catchUp(ctx, j.journal, seq, j.apply)
		}
		j.journal.Unlock()
		if !gone && !again(ctx, err) {
			return j, read
		}
	}
}

// catchUp reads a journal, whose lock is held, up to a message; false: it was known.
func (s *Store) catchUp(ctx context.Context, w *journal.Writer, seq uint64, apply func(*journal.Record, uint64) error) (bool, error) {
	if seq <= w.Last() {
		return false, nil
	}
	err := w.Read(ctx, s.log, func(r *journal.Record) error { return apply(r, w.Last()) })
	if err != nil && ctx.Err() == nil {
		s.cfg.Logger.Warn("jobs: what another process wrote cannot be read", "journal", w.Name, "error", err)
	}
	s.mu.Lock()
	s.last = max(s.last, w.Last())
	s.mu.Unlock()
	return true, err
}

// again waits before a log that did not answer is read once more: a journal is heard of once.
func again(ctx context.Context, err error) bool {
	if err == nil || errors.Is(err, journal.ErrDamaged) {
		return false
	}
	t := time.NewTimer(followPause)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
