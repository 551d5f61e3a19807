package jobs

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/shoal-llm/shoal/internal/jobs/journal"
	"github.com/shoal-llm/shoal/internal/jobs/routes"
)

// followPause is the pause between two attempts to read the log.
const followPause = time.Second

// Follow applies what other processes write to a shared log, until ctx ends. A coordinator that has
// lost its lease without noticing may still accept a job. That job is in the log, so it counts as
// accepted and the current leader runs it.
func (s *Store) Follow(ctx context.Context) {
	s.followed.Store(true)
	defer s.followed.Store(false)
	after := s.scanned // start at the last scanned message: other processes may have written before this process's newest one
	for ctx.Err() == nil {
		err := s.log.Follow(ctx, after, func(name string, seq uint64) {
			s.refresh(ctx, name, seq)
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

// Lookup reads an unknown journal from a log that other processes may write to. Follow may lag:
// after the server that it reads from dies, it receives nothing for seconds. An error means that
// the log gave no answer.
func (s *Store) Lookup(ctx context.Context, name string) error {
	if !s.followed.Load() || !journal.IsName(name) {
		return nil
	}
	ctx, cancel := context.WithTimeout(journal.WithAnswerTimeout(ctx, routes.AcceptLimit), routes.AcceptLimit)
	defer cancel()
	s.refresh(ctx, name, math.MaxUint64)
	if s.job(name) != nil {
		s.cfg.Logger.Info("jobs: found a job of another process by lookup", "job", name)
	}
	return ctx.Err()
}

// refresh reads the records of a journal that this process has not read yet. Usually there are none,
// because the process itself wrote the message.
func (s *Store) refresh(ctx context.Context, name string, seq uint64) {
	if name == anchorName {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.last, s.anchor = max(s.last, seq), max(s.anchor, seq)
		return
	}
	if b := s.peer(name); b != nil {
		b.Refresh(name, func(w *journal.Writer, apply func(*journal.Record, uint64) error) error {
			for {
				w.Lock()
				_, err := s.catchUp(ctx, w, seq, apply)
				w.Unlock()
				if !pauseBeforeRetry(ctx, err) {
					return err
				}
			}
		})
		return
	}
	j, read := s.refreshJob(ctx, name, seq)
	if !read {
		s.removeEntry(j) // the journal is empty: drop the entry that was made for it
		return
	}
	switch p := j.snapshot().state.Phase; {
	case p == "":
		s.removeEntry(j)
	case p.Final():
		s.deactivate(j)
	default:
		s.activate(j)
		s.Wake()
	}
}

// refreshJob reads the journal of a job and creates the job's entry if needed. read is false if
// there was nothing new.
func (s *Store) refreshJob(ctx context.Context, name string, seq uint64) (j *job, read bool) {
	for {
		s.mu.Lock()
		if j = s.jobs[name]; j == nil {
			j = newJob(name)
			s.jobs[name] = j
		}
		s.mu.Unlock()
		j.journal.Lock()
		// Another request may have given up the entry while this one waited for the lock.
		removed, err := j.removed, error(nil)
		if !removed {
			read, err = s.catchUp(ctx, j.journal, seq, j.apply)
		}
		j.journal.Unlock()
		if !removed && !pauseBeforeRetry(ctx, err) {
			return j, read
		}
	}
}

// catchUp reads a journal up to message seq. The journal's lock must be held. It returns false if
// the message was already known.
func (s *Store) catchUp(ctx context.Context, w *journal.Writer, seq uint64, apply func(*journal.Record, uint64) error) (bool, error) {
	if seq <= w.Last() {
		return false, nil
	}
	err := w.Read(ctx, s.log, func(r *journal.Record) error { return apply(r, w.Last()) })
	if err != nil && ctx.Err() == nil {
		s.cfg.Logger.Warn("jobs: cannot read records of another process", "journal", w.Name, "error", err)
	}
	s.mu.Lock()
	s.last = max(s.last, w.Last())
	s.mu.Unlock()
	return true, err
}

// pauseBeforeRetry waits before a failed read is repeated. Follow reports each message only once,
// so the read must not be skipped.
func pauseBeforeRetry(ctx context.Context, err error) bool {
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
