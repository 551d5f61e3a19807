package jobs

import (
	"context"
	"time"

	"shoal/jobs/journal"
)

// Follow takes up what somebody else writes to a log that several processes can
// reach, until ctx ends. A coordinator that has lost its lease and does not know
// it yet may still accept a job: it is in the log, so it is accepted, and whoever
// reads the log runs it.
func (s *Store) Follow(ctx context.Context) {
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
		t := time.NewTimer(time.Second)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
		}
	}
}

// heard reads what a journal has beyond what is known, if anything: mostly it
// is this process's own record.
func (s *Store) heard(ctx context.Context, name string, seq uint64) {
	if name == anchorName {
		return
	}
	if b := s.cfg.Beside; b != nil && b.Owns(name) {
		b.Heard(name, func(w *journal.Writer, apply func(*journal.Record, uint64) error) { s.catchUp(ctx, w, seq, apply) })
		return
	}
	s.mu.Lock()
	j := s.jobs[name]
	if j == nil {
		j = newJob(name)
		s.jobs[name] = j
	}
	s.mu.Unlock()
	if !s.catchUp(ctx, j.journal, seq, j.apply) {
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

// catchUp reads a journal up to a message; false: it was known.
func (s *Store) catchUp(ctx context.Context, w *journal.Writer, seq uint64, apply func(*journal.Record, uint64) error) bool {
	w.Lock()
	defer w.Unlock()
	if seq <= w.Last() {
		return false
	}
	err := w.Read(ctx, s.log, func(r *journal.Record) error { return apply(r, w.Last()) })
	if err != nil && ctx.Err() == nil {
		s.cfg.Logger.Warn("jobs: what another process wrote cannot be read", "journal", w.Name, "error", err)
	}
	s.mu.Lock()
	s.last = max(s.last, w.Last())
	s.mu.Unlock()
	return true
}
