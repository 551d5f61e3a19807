package jobs

import (
	"context"
	"strings"
	"time"
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
	if strings.HasPrefix(name, batchPrefix) {
		s.mu.Lock()
		b := s.batches[name]
		s.mu.Unlock()
		if b == nil {
			b = &batch{id: name, journal: journal{Journal: Journal{Name: name}}}
		}
		s.catchUp(ctx, &b.journal, seq, func(r *Record) error { return b.apply(r, b.journal.last) })
		b.mu.Lock()
		known := b.state.Phase != ""
		b.mu.Unlock()
		s.mu.Lock()
		if known && s.batches[name] == nil {
			s.batches[name] = b
		}
		s.mu.Unlock()
		return
	}
	s.mu.Lock()
	j := s.jobs[name]
	if j == nil {
		j = newJob(name)
		s.jobs[name] = j
	}
	s.mu.Unlock()
	if !s.catchUp(ctx, &j.journal, seq, func(r *Record) error { return j.apply(r, j.journal.last) }) {
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
func (s *Store) catchUp(ctx context.Context, j *journal, seq uint64, foreign func(*Record) error) bool {
	j.write.Lock()
	defer j.write.Unlock()
	if seq <= j.last {
		return false
	}
	if err := j.catchUp(ctx, s.log, foreign); err != nil && ctx.Err() == nil {
		s.cfg.Logger.Warn("jobs: what another process wrote cannot be read", "journal", j.Name, "error", err)
	}
	s.mu.Lock()
	s.last = max(s.last, j.last)
	s.mu.Unlock()
	return true
}

// Copy brings every journal of one log into another, in place of what is there.
func Copy(ctx context.Context, from, to Log) (messages int, err error) {
	if err := to.Clear(ctx); err != nil {
		return 0, err
	}
	last := map[string]uint64{}
	err = from.Scan(ctx, func(name string, _ uint64, data []byte) error {
		seq, err := to.Append(ctx, name, last[name], data)
		if err != nil {
			return err
		}
		last[name] = seq
		messages++
		return nil
	})
	return messages, err
}
