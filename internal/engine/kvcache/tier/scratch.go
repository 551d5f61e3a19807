package tier

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/shoal-llm/shoal/internal/lograte"
	"github.com/shoal-llm/shoal/internal/options"
)

// Scratch is a folder for rows of running sequences that do not fit in memory. Its files are
// unlinked while open, so they disappear with their process. Methods may be called concurrently.
// A folder below it has the caches of idle sessions, which outlive the process (see Saved). The limit
// counts both.
//
// A few goroutines do the reads, each into memory of its own. So a caller can stop waiting for a
// hung disk, and a late read never writes into memory that has been reused.
type Scratch struct {
	create func() (Medium, error)
	limit  int64
	log    *slog.Logger
	lines  lograte.Limiter
	used   atomic.Int64
	read   atomic.Uint64
	wrote  atomic.Uint64
	failed atomic.Uint64
	disk   health // of all requests
	writes health // of those that write

	room  sync.Mutex // held while bytes are reserved
	kept  atomic.Int64
	saved *Saved // caches of idle sessions; nil: none

	jobs chan *readJob
	quit chan struct{}
	once sync.Once
}

// Medium is an open scratch file.
type Medium interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
}

// ready is a Medium that can read bytes without waiting. ReadReady returns false if it might wait.
type ready interface {
	ReadReady(b []byte, at int64) bool
}

// ErrScratch means that the disk of a Scratch has failed, hangs, or has no room.
var ErrScratch = errors.New("tier: scratch files")

// ErrRoom is an ErrScratch: a file is too large for the bytes that are left.
var ErrRoom = fmt.Errorf("%w: no room", ErrScratch)

const (
	scratchPrefix  = "shoal-kv-"
	scratchReaders = 16
	// pagesAJob is the number of pages that a goroutine reads in one job.
	pagesAJob = 8
)

// A request that takes longer than ScratchTimeout has failed. The disk is then not used for ScratchPause, and until the
// request has ended.
const (
	ScratchTimeout = 2 * time.Second
	ScratchPause   = 5 * time.Second
)

// OpenScratch opens a folder for files of at most limit bytes in total. It removes files of
// processes that have died.
func OpenScratch(dir string, limit int64, log *slog.Logger) (*Scratch, error) {
	if limit < 1 {
		return nil, fmt.Errorf("tier: "+options.Name("kv-disk-size")+" %d: want a number of bytes", limit)
	}
	if err := private(dir, options.Name("kv-disk")); err != nil {
		return nil, err
	}
	left, err := filepath.Glob(filepath.Join(dir, scratchPrefix+"*"))
	if err != nil {
		return nil, fmt.Errorf("tier: "+options.Name("kv-disk")+": %w", err)
	}
	for _, name := range left {
		_ = os.Remove(name) // of another process, which does not need the name, or in use on systems that cannot unlink open files
	}
	create := func() (Medium, error) {
		f, err := os.CreateTemp(dir, scratchPrefix)
		if err != nil {
			return nil, err
		}
		var m Medium = diskFile{f}
		if err := os.Remove(f.Name()); err != nil && !errors.Is(err, fs.ErrNotExist) { // another process may have removed it
			m = removed{f} // systems that cannot unlink open files
		}
		return m, nil
	}
	f, err := create()
	if err != nil {
		return nil, fmt.Errorf("tier: "+options.Name("kv-disk")+": %w", err)
	}
	if err := f.Close(); err != nil {
		return nil, fmt.Errorf("tier: "+options.Name("kv-disk")+": %w", err)
	}
	s := NewScratch(create, limit, log)
	if s.saved, err = openSaved(filepath.Join(dir, savedFolder), s, log, time.Now); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		s.Close()
		return nil, err
	}
	return s, nil
}

// reserve counts the bytes of a new file. It removes caches of idle sessions for it, the oldest first. It
// returns false if that would not free enough bytes, and then removes none.
func (s *Scratch) reserve(size int64, of *atomic.Int64) bool {
	s.room.Lock()
	defer s.room.Unlock()
	others := s.used.Load() + s.kept.Load() - s.saved.removable()
	if size < 0 || size > s.limit-others {
		return false
	}
	for s.used.Load()+s.kept.Load()+size > s.limit {
		if !s.saved.removeOldest() {
			return false
		}
	}
	of.Add(size)
	return true
}

// Saved returns the caches of idle sessions; nil: they are not stored.
func (s *Scratch) Saved() *Saved { return s.saved }

// removed is a file that is removed when it is closed.
type removed struct{ *os.File }

func (f removed) Close() error { return errors.Join(f.File.Close(), os.Remove(f.Name())) }

// NewScratch is OpenScratch for files made by create.
func NewScratch(create func() (Medium, error), limit int64, log *slog.Logger) *Scratch {
	s := &Scratch{create: create, limit: limit, log: log, jobs: make(chan *readJob), quit: make(chan struct{})}
	for range scratchReaders {
		go s.readAll() // ends after Close, unless the disk hangs
	}
	return s
}

// Limit returns the maximum total size of the files in bytes.
func (s *Scratch) Limit() int64 { return s.limit }

// ScratchStats are the used bytes and their limit, and counts since the start: pages read, bytes
// written, failures.
type ScratchStats struct {
	Used, Limit         int64
	Read, Wrote, Failed uint64
}

// Stats returns the counters.
func (s *Scratch) Stats() ScratchStats {
	return ScratchStats{Used: s.used.Load(), Limit: s.limit, Read: s.read.Load(), Wrote: s.wrote.Load(), Failed: s.failed.Load()}
}

// Close ends the goroutines. Open files cannot be read afterwards.
func (s *Scratch) Close() {
	s.once.Do(func() {
		close(s.quit)
		s.saved.close()
	})
}

// Paused reports whether the disk is not used because it failed a moment ago.
func (s *Scratch) Paused() bool { return !s.disk.ok(time.Now()) }

// writable returns an error if nothing is written at the moment.
func (s *Scratch) writable() error {
	if now := time.Now(); !s.disk.ok(now) || !s.writes.ok(now) {
		return fmt.Errorf("%w: the disk failed a moment ago and is not used", ErrScratch)
	}
	return nil
}

// fail records a failure of the disk.
func (s *Scratch) fail(err error) error {
	s.failed.Add(1)
	s.disk.pause(time.Now().Add(ScratchPause))
	return s.warn(err)
}

// warn logs a failure, and returns it as an error of this package.
func (s *Scratch) warn(err error) error {
	if ok, leftOut, _ := s.lines.Allow("", time.Now()); ok {
		s.log.Warn("the disk of scratch files fails: sequences stay in memory, or are read again", "error", err, "left_out", leftOut)
	}
	return fmt.Errorf("%w: %w", ErrScratch, err)
}

// yield removes the oldest cache of an idle session if err means that the disk is full. It waits for the disk.
func (s *Scratch) yield(err error) {
	if errors.Is(err, syscall.ENOSPC) {
		s.room.Lock()
		defer s.room.Unlock()
		s.saved.removeOldest()
	}
}

// Pages is one scratch file.
type Pages struct {
	s     *Scratch
	m     Medium
	size  int64
	users sync.WaitGroup // reads and writes that may outlive their caller
	once  sync.Once
	copy  []byte // of Put; nil: a write that hangs has it
}

// Create makes a file of size bytes, which count as used from now on. It fails within ScratchTimeout. If it takes
// longer, nothing is written for a time, and files are still read: they may be in the page cache.
func (s *Scratch) Create(size int64) (*Pages, error) {
	if err := s.writable(); err != nil {
		return nil, err
	}
	p := &Pages{s: s, size: size}
	hung, err := s.writes.run(ScratchTimeout, func() (err error) {
		if size < 0 || !s.reserve(size, &s.used) {
			return fmt.Errorf("%w: %d bytes requested, %d of %d are in use", ErrRoom, size, s.used.Load(), s.limit)
		}
		if p.m, err = s.create(); err != nil {
			s.used.Add(-size)
		}
		s.yield(err)
		return err
	}, func(err error) {
		if err == nil {
			p.Close()
		}
	})
	switch {
	case hung:
		s.failed.Add(1)
		s.writes.pause(time.Now().Add(ScratchPause))
		return nil, s.warn(fmt.Errorf("creating a file: %w", err))
	case errors.Is(err, ErrRoom):
		return nil, err
	case err != nil:
		return nil, s.fail(err)
	}
	return p, nil
}

// Write writes bytes at an offset. It waits for the disk.
func (p *Pages) Write(b []byte, at int64) error {
	if at < 0 || at > p.size-int64(len(b)) {
		return fmt.Errorf("%w: bytes [%d,%d) of a file of %d", ErrScratch, at, at+int64(len(b)), p.size)
	}
	if _, err := p.m.WriteAt(b, at); err != nil {
		p.s.yield(err)
		return p.s.fail(err)
	}
	p.s.wrote.Add(uint64(len(b)))
	return nil
}

// Put is Write of a copy of the bytes. It fails within ScratchTimeout, and at once while an earlier request hangs.
// One goroutine calls Put.
func (p *Pages) Put(b []byte, at int64) error {
	if err := p.s.writable(); err != nil {
		return err
	}
	b = append(p.copy[:0], b...)
	p.copy = nil
	p.users.Add(1)
	hung, err := p.s.writes.run(ScratchTimeout, func() error {
		defer p.users.Done()
		return p.Write(b, at)
	}, func(error) {})
	if hung {
		return p.s.fail(fmt.Errorf("writing %d bytes: %w", len(b), err))
	}
	p.copy = b
	return err
}

// Close closes the file after its hanging reads and writes have ended.
func (p *Pages) Close() {
	p.once.Do(func() {
		go func() {
			p.users.Wait()
			if err := p.m.Close(); err != nil {
				_ = p.s.fail(err)
			}
			p.s.used.Add(-p.size)
		}()
	})
}

// readJob is a set of pages for one goroutine to read.
type readJob struct {
	p     *Pages
	first int
	at    []int64
	size  int
	bytes []byte
	err   error
	done  chan<- *readJob
}

// Read passes the size bytes at each offset to got, as kvcache.PageFile specifies, or fails within
// ScratchTimeout.
func (p *Pages) Read(at []int64, size int, got func(i int, page []byte) error) error {
	if p.s.Paused() {
		return fmt.Errorf("%w: the disk failed a moment ago and is not used", ErrScratch)
	}
	for _, from := range at {
		if from < 0 || from > p.size-int64(size) {
			return fmt.Errorf("%w: bytes [%d,%d) of a file of %d", ErrScratch, from, from+int64(size), p.size)
		}
	}
	wait, of, err := p.readReady(at, size, got)
	if len(wait) == 0 || err != nil {
		return err
	}
	patience := patience{Timer: time.NewTimer(ScratchTimeout)}
	defer patience.Stop()
	n := (len(wait) + pagesAJob - 1) / pagesAJob
	done := make(chan *readJob, n)
	sent, answered := 0, 0
	late := func() error {
		hangs(&p.s.disk, sent-answered, done, func(*readJob) {})
		return p.s.fail(fmt.Errorf("no answer to a read of %d pages within %v", len(at), ScratchTimeout))
	}
	for i := range n {
		j := jobPool.Get().(*readJob)
		first := i * pagesAJob
		j.p, j.first, j.at, j.size, j.done, j.err = p, first, append(j.at[:0], wait[first:min(first+pagesAJob, len(wait))]...), size, done, nil
		p.users.Add(1)
		for sent == i {
			select {
			case p.s.jobs <- j:
				sent++
			case <-patience.C:
				if patience.ends() {
					p.users.Done()
					return late()
				}
			case <-p.s.quit:
				p.users.Done()
				return fmt.Errorf("%w: closed", ErrScratch)
			}
		}
	}
	var failed error
	for answered < n {
		select {
		case j := <-done:
			answered++
			if failed == nil {
				failed = j.err
			}
			for i := 0; i < len(j.at) && failed == nil; i++ {
				failed = got(of[j.first+i], j.bytes[i*size:][:size])
			}
			jobPool.Put(j)
		case <-patience.C:
			if patience.ends() {
				return late()
			}
		}
	}
	p.s.read.Add(uint64(len(wait)))
	return failed
}

// patience is the deadline of a read, with hangGrace after it: if the process was stopped, the disk may have answered.
type patience struct {
	*time.Timer
	again bool
}

// ends reports whether the grace has passed too.
func (p *patience) ends() bool {
	if !p.again {
		p.again = true
		p.Reset(hangGrace)
		return false
	}
	return true
}

// readReady passes the pages in the page cache to got directly, since handing a page of a few
// kilobytes to another thread takes longer than reading it. It returns the offsets of the remaining
// pages, and their indices in at.
func (p *Pages) readReady(at []int64, size int, got func(i int, page []byte) error) (wait []int64, of []int, err error) {
	m, ok := p.m.(ready)
	j := jobPool.Get().(*readJob)
	defer jobPool.Put(j)
	j.bytes = slices.Grow(j.bytes[:0], size)[:size]
	for i, from := range at {
		if ok && m.ReadReady(j.bytes, from) {
			if err := got(i, j.bytes); err != nil {
				return nil, nil, err
			}
			p.s.read.Add(1)
			continue
		}
		wait, of = append(wait, from), append(of, i)
	}
	return wait, of, nil
}

// jobPool holds jobs whose callers have received them back.
var jobPool = sync.Pool{New: func() any { return new(readJob) }}

// readAll is the loop of one reading goroutine.
func (s *Scratch) readAll() {
	for {
		select {
		case <-s.quit:
			return
		case j := <-s.jobs:
			j.read()
		}
	}
}

// read reads a job's pages. Adjacent pages take one read.
func (j *readJob) read() {
	defer j.p.users.Done()
	j.bytes = slices.Grow(j.bytes[:0], len(j.at)*j.size)[:len(j.at)*j.size]
	for i := 0; i < len(j.at) && j.err == nil; {
		n := 1
		for i+n < len(j.at) && j.at[i+n] == j.at[i]+int64(n*j.size) {
			n++
		}
		if _, err := j.p.m.ReadAt(j.bytes[i*j.size:][:n*j.size], j.at[i]); err != nil {
			j.err = j.p.s.fail(err)
		}
		i += n
	}
	j.done <- j
}

// private creates a folder that only its owner can access.
func private(dir, flag string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("tier: %s: %w", flag, err)
	}
	st, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("tier: %s: %w", flag, err)
	}
	if st.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("tier: %s %s: other users have access (%v), and it will hold texts of users: chmod 700 it, or name a folder that "+
			"does not exist yet", flag, dir, st.Mode().Perm())
	}
	return nil
}
