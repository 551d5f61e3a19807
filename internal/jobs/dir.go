package jobs

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/shoal-llm/shoal/internal/sys/wholefile"
)

// StoreBytes is the disk limit of the log of jobs and batches, without files.
const StoreBytes = 1 << 30

// Dir is a data directory that this process has leased:
//
//	lock         the lease
//	last.json    the last acknowledged message, written once a second
//	jetstream/   the journals, written by the JetStream server that the caller
//	             starts, or by another one if the journals are replicated
type Dir struct {
	path string
	lock *lock
	stop chan struct{} // stops the goroutine that writes last.json; nil: it does not run
	wg   sync.WaitGroup
}

// OpenDir creates or opens the directory and takes its lease. It returns ErrLocked while another
// process has the lease.
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
	Jobs int    `json:"jobs"` // number of jobs in the log at that time
	// Lost is the number of jobs that were lost without a trace. LostAt is the time of the
	// discovery.
	Lost   int   `json:"gone,omitempty"`
	LostAt int64 `json:"gone_at,omitempty"` // Unix milliseconds
}

// Attach compares a store with the last.json of this directory and then keeps that file current.
// Journals reveal records missing in their middle. A log that has lost its tail, including whole
// jobs, is detected only here. The file is written once a second, so it misses the newest messages.
// name selects the log; "" is the one in this directory.
func (d *Dir) Attach(s *Store, name string) {
	path := filepath.Join(d.path, "last"+name+".json")
	b, err := os.ReadFile(path)
	var m mark
	switch {
	case errors.Is(err, os.ErrNotExist):
	case err != nil || json.Unmarshal(b, &m) != nil:
		s.recordDamage("last.json cannot be read: it is unknown whether the log has lost its end")
	case m.Last > s.Last():
		s.cut.Store(true)
		s.recordDamage(fmt.Sprintf("messages %d to %d were acknowledged but are missing: the log ends at %d", s.Last()+1, m.Last, s.Last()))
	}
	s.missing(&m)
	d.Detach()
	d.stop = make(chan struct{})
	d.wg.Add(1)
	go d.remember(s, path, m, d.stop)
}

// Detach stops updating last.json for the store.
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
		if err := wholefile.Write(path, b, 0o600); err != nil {
			s.cfg.Logger.Warn("jobs: last.json was not written", "error", err)
			continue
		}
		written, entries = last, total
	}
}

// missing counts lost jobs: last.json has a greater number of jobs than the log. It counts only after
// damage to journals with unknown names, because a job that was dropped just before a crash is not
// lost.
func (s *Store) missing(m *mark) {
	if s.Now()-m.LostAt > s.cfg.Retention.Milliseconds() {
		m.Lost = 0
	}
	named := 0
	for _, name := range s.cfg.Salvage.New {
		if isJob(name) && s.job(name) == nil {
			named++
		}
	}
	if n := m.Jobs - s.accepted() - named; n > 0 && (s.cut.Load() || len(s.cfg.Salvage.Notes) > 0) {
		m.Lost, m.LostAt = m.Lost+n, s.Now()
	}
	s.untraced.Store(int64(m.Lost))
}

// accepted returns the number of jobs, including those that have ended.
func (s *Store) accepted() (n int) {
	for _, k := range s.States() {
		n += k
	}
	return n
}

// Close releases the lease. The store must not be used afterwards.
func (d *Dir) Close() {
	d.Detach()
	d.lock.release()
}

// recordDamage logs and records damage that belongs to no job.
func (s *Store) recordDamage(text string) {
	s.cfg.Logger.Error("jobs: damaged store", "error", text)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.damages = append(s.damages, text)
}

// Count returns the number of unfinished jobs and of all jobs.
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
		if v := j.snapshot(); v.state.Phase != "" {
			out[v.state.Phase]++
		}
	}
	return out
}
