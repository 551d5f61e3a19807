package jobs

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/shoal-llm/shoal/internal/jobs/journal"
)

// StoreBytes bounds what jobs and batches take on disk, without files.
const StoreBytes = 1 << 30

// Dir is a data directory under this process's lease:
//
//	lock         the lease
//	last.json    the newest message that was acknowledged, a moment ago
//	jetstream/   the journals, of a server that the caller starts; others, when
//	             they are replicated
type Dir struct {
	path string
	lock *lock
	stop chan struct{} // of the goroutine that remembers; nil: there is none
	wg   sync.WaitGroup
}

// OpenDir makes the directory or opens it, and takes the lease: ErrLocked while
// another process has it.
func OpenDir(path string) (*Dir, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("jobs: data directory: %w", err)
	}
	l, err := takeLock(path)
	if err != nil {
		return nil, err
	}
	return &Dir{path: path, lock: l}, nil
}

// mark is the content of last.json.
type mark struct {
	Last uint64 `json:"last"`
	Jobs int    `json:"jobs"` // of the log then
	// Gone is how many jobs were found to be lost without a trace, and when.
	Gone   int   `json:"gone,omitempty"`
	GoneAt int64 `json:"gone_at,omitempty"` // Unix milliseconds
}

// Attach compares a store with what this directory remembers of it, and
// remembers it from now on. The journals show what is missing among their
// records; a log that has lost its end, whole jobs with it, shows only here. It
// is written once a second, so the very last messages are not covered. name says
// which log it is, "" for the one in this directory.
func (d *Dir) Attach(s *Store, name string) {
	path := filepath.Join(d.path, "last"+name+".json")
	b, err := os.ReadFile(path)
	var m mark
	switch {
	case errors.Is(err, os.ErrNotExist):
	case err != nil || json.Unmarshal(b, &m) != nil:
		s.note("last.json cannot be read: whether the log has lost its end is not known")
	case m.Last > s.Last():
		s.cut.Store(true)
		s.note(fmt.Sprintf("messages %d to %d were acknowledged and are gone: the log ends at %d", s.Last()+1, m.Last, s.Last()))
	}
	s.missing(&m)
	d.Detach()
	d.stop = make(chan struct{})
	d.wg.Add(1)
	go d.remember(s, path, m, d.stop)
}

// Detach lets go of the store.
func (d *Dir) Detach() {
	if d.stop != nil {
		close(d.stop)
		d.wg.Wait()
		d.stop = nil
	}
}

func (d *Dir) remember(s *Store, path string, m mark, stop <-chan struct{}) {
	defer d.wg.Done()
	t := time.NewTicker(time.Second)
	defer t.Stop()
	written, entries := uint64(0), 0
	for over := false; !over; {
		select {
		case <-t.C:
		case <-stop:
			over = true
		}
		last := s.Last()
		_, total := s.Count()
		if last == written && total == entries {
			continue
		}
		m.Last, m.Jobs = last, s.accepted()
		b, _ := json.Marshal(m)
		if err := journal.WriteWhole(path, b); err != nil {
			s.cfg.Logger.Warn("jobs: last.json was not written", "error", err)
			continue
		}
		written, entries = last, total
	}
}

// missing counts the jobs that a log had when it was last looked at, and that left no trace. It
// counts only where damage shows that the names cannot be known: a job that was dropped just
// before a crash is not lost.
func (s *Store) missing(m *mark) {
	if s.Now()-m.GoneAt > s.cfg.Keep.Milliseconds() {
		m.Gone = 0
	}
	named := 0
	for _, name := range s.cfg.Salvage.New {
		if isJob(name) && s.job(name) == nil {
			named++
		}
	}
	if n := m.Jobs - s.accepted() - named; n > 0 && (s.cut.Load() || len(s.cfg.Salvage.Notes) > 0) {
		m.Gone, m.GoneAt = m.Gone+n, s.Now()
	}
	s.gone.Store(int64(m.Gone))
}

// accepted is how many jobs there are, ended ones included.
func (s *Store) accepted() (n int) {
	for _, k := range s.States() {
		n += k
	}
	return n
}

// Close ends the lease. The store must not be used any more.
func (d *Dir) Close() {
	d.Detach()
	d.lock.release()
}

// note records damage that belongs to no job.
func (s *Store) note(text string) {
	s.cfg.Logger.Error("jobs: damaged store", "error", text)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notes = append(s.notes, text)
}

// Count is how many jobs have not ended, and how many there are.
func (s *Store) Count() (unfinished, total int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.active), len(s.jobs)
}

func (s *Store) Close() {
	if err := s.log.Close(); err != nil {
		s.cfg.Logger.Warn("jobs: closing the log", "error", err)
	}
}

func (s *Store) States() map[Phase]int {
	out := map[Phase]int{}
	for _, p := range Phases {
		out[p] = 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, j := range s.jobs {
		if v := j.view(); v.state.Phase != "" {
			out[v.state.Phase]++
		}
	}
	return out
}
