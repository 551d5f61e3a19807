// Package tier stores blocks of the prefix cache in files, so that they survive eviction from
// memory, a crash, and a restart.
//
//	DIR/0, DIR/1, ...     one folder per writing process, which holds its lock
//	DIR/0/KEY-AT-LO-HI    block AT of a text: the rows of KV heads [LO, HI), every layer
//
// Every process reads all folders, so it finds blocks of other processes on this machine, also with
// another number of nodes. A file is written under a temporary name, then renamed, and never
// changed. Each head has its own hash, which is checked on reading.
package tier

import (
	"container/heap"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/lograte"
	"github.com/shoal-llm/shoal/internal/options"
	"github.com/shoal-llm/shoal/internal/sys/flock"
)

// Key identifies a block by everything that its rows depend on; the batcher makes it, by a hash
// chain.
type Key [32]byte

// Store is one process's folder, and the other folders that it reads. Its methods may be called
// concurrently. Read, Write, Rescan and Forget wait for the disk, the others do not.
type Store struct {
	dir   string // of this process
	root  string
	limit int64
	log   *slog.Logger
	lines lograte.Limiter
	lock  *os.File
	// unlink removes a file.
	unlink func(path string) error

	disk   sync.Mutex // one write, removal or scan at a time
	mu     sync.Mutex // guards the fields below; never held during disk access
	files  map[Key][]*file
	heap   evictionHeap // files of our own
	stuck  []*file      // our own files that are not listed any more, but could not be removed
	bytes  int64        // total size of our own files, including stuck ones
	clock  int64
	number uint64
	stats  Stats
}

// Stats are counts since the start, except Bytes and Blocks: the present contents of this process's
// folder.
type Stats struct {
	Bytes, Limit                                 int64
	Blocks                                       int
	Written, Read, Dropped, Damaged, Failed, Out uint64 // blocks; Out: evicted for others
}

// file is a block, or the part of it that one socket holds.
type file struct {
	name      name
	dir       string
	size      int64
	uses      int64
	value     int64
	number    uint64 // sequence number of its last use
	heapIndex int    // index in Store.heap; none: another process's file
}

const none = -1

// Open locks a free folder under root for this process and lists its files. limit bounds the bytes
// that this process stores.
func Open(root string, limit int64, log *slog.Logger) (*Store, error) {
	if limit < 1 {
		return nil, fmt.Errorf("tier: "+options.Name("prefix-disk-size")+" %d: want a number of bytes", limit)
	}
	if err := private(root, options.Name("prefix-disk")); err != nil {
		return nil, err
	}
	s := &Store{root: root, limit: limit, log: log, unlink: os.Remove, files: map[Key][]*file{}}
	if err := s.take(); err != nil {
		return nil, err
	}
	s.Rescan()
	return s, nil
}

const (
	folders  = 1024
	lockName = "lock"
	// deserted is how long a folder that no process holds is still read.
	deserted = time.Hour
)

// take locks a folder that no process holds.
func (s *Store) take() (err error) {
	s.dir, s.lock, err = takeFolder(s.root, options.Name("prefix-disk"))
	return err
}

// takeFolder locks a numbered folder below root that no process holds. flag is the option that names root.
func takeFolder(root, flag string) (dir string, lock *os.File, err error) {
	for i := range folders {
		dir := filepath.Join(root, strconv.Itoa(i))
		f, err := takeLock(dir)
		if errors.Is(err, flock.ErrHeld) {
			continue
		}
		if err != nil {
			return "", nil, fmt.Errorf("tier: %s: %w", flag, err)
		}
		return dir, f, nil
	}
	return "", nil, fmt.Errorf("tier: %s %s: %d processes use it, the maximum: set another folder", flag, root, folders)
}

// takeLock makes a folder, if it is not there, and locks it. Another process that starts may lock it for a moment, to
// see whether it is in use, or remove it. So this tries again.
func takeLock(dir string) (lock *os.File, err error) {
	at := filepath.Join(dir, lockName)
	for try := range lockTries {
		if try > 0 {
			time.Sleep(lockPause)
		}
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		if lock, err = flock.Open(at, flock.Own); err == nil {
			return lock, nil
		}
		if lock != nil {
			lock.Close()
		}
		if !errors.Is(err, flock.ErrHeld) && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	return nil, err
}

const (
	lockTries = 4
	lockPause = time.Millisecond
)

// Close releases the folder for the next process. Its files stay.
func (s *Store) Close() error { return s.lock.Close() }

// Stats returns the counters.
func (s *Store) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stats
	st.Bytes, st.Limit, st.Blocks = s.bytes, s.limit, len(s.heap)
	return st
}

// Drop counts a block that was not written because the disk already had a backlog.
func (s *Store) Drop() {
	s.mu.Lock()
	s.stats.Dropped++
	s.mu.Unlock()
	s.warn("the disk is slower than prompts are read: blocks are not kept in files")
}

// Has returns how many of the first keys are stored with all of the heads. The keys are consecutive
// blocks of a text, from number at.
func (s *Store) Has(keys []Key, at int, heads tensor.Span) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for n < len(keys) && len(s.covering(keys[n], at+n, heads)) > 0 {
		n++
	}
	return n
}

// covering returns files that together hold the heads, in order; nil: some are missing.
func (s *Store) covering(k Key, at int, heads tensor.Span) (list []*file) {
	for next := heads.Lo; next < heads.Hi; {
		var best *file
		for _, f := range s.files[k] {
			if f.name.at == at && f.name.heads.Lo <= next && f.name.heads.Hi > next && (best == nil || f.name.heads.Hi > best.name.heads.Hi) {
				best = f
			}
		}
		if best == nil {
			return nil
		}
		list, next = append(list, best), best.name.heads.Hi
	}
	return list
}

// own reports whether this process's folder has the block.
func (s *Store) own(n name) bool {
	for _, f := range s.files[n.key] {
		if f.heapIndex != none && f.name == n {
			return true
		}
	}
	return false
}

// Lacks reports whether Write would store the block.
func (s *Store) Lacks(k Key, at int, heads tensor.Span) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.own(name{k, at, heads})
}

// use records a use of a file. Eviction is GreedyDual: the lowest value goes first, which is the
// number of uses plus the value of the last evicted file. Of equals, the end of a text goes before
// its beginning.
func (s *Store) use(f *file) {
	s.number++
	f.uses++
	f.value, f.number = s.clock+f.uses, s.number
	if f.heapIndex != none {
		heap.Fix(&s.heap, f.heapIndex)
	}
}

// add registers a file. Its value is at most that of the block before it, without which it is
// useless.
func (s *Store) add(f *file, before Key, own bool) {
	s.number++
	f.heapIndex, f.uses, f.value, f.number = none, 1, s.clock+1, s.number
	for _, o := range s.files[before] {
		if o.heapIndex != none {
			f.value = min(f.value, o.value)
		}
	}
	s.files[f.name.key] = append(s.files[f.name.key], f)
	if own {
		s.unstick(f.path()) // it replaced a file of this name
		heap.Push(&s.heap, f)
		s.bytes += f.size
	}
}

func (s *Store) forget(f *file) {
	list := slices.DeleteFunc(s.files[f.name.key], func(o *file) bool { return o == f })
	if s.files[f.name.key] = list; len(list) == 0 {
		delete(s.files, f.name.key)
	}
	if f.heapIndex != none {
		heap.Remove(&s.heap, f.heapIndex)
		s.bytes -= f.size
	}
}

// Rescan lists the folders again: those of other processes for new files, and on the first call our
// own. It removes folders that no process has held for an hour.
func (s *Store) Rescan() {
	s.disk.Lock()
	defer s.disk.Unlock()
	entries, err := os.ReadDir(s.root)
	if err != nil {
		s.fail("listing", s.root, err)
		return
	}
	s.mu.Lock()
	first := s.number == 0
	for _, list := range s.files {
		for _, f := range slices.Clone(list) {
			if f.heapIndex == none {
				s.forget(f)
			}
		}
	}
	s.mu.Unlock()
	for _, e := range entries {
		dir := filepath.Join(s.root, e.Name())
		if !isFolder(e) {
			continue
		}
		own := dir == s.dir
		if own && !first || !own && s.removeDeserted(dir, deserted) {
			continue
		}
		s.list(dir, own)
	}
	if first {
		s.makeRoom(0)
	}
}

// list registers the files of a folder, least recently used first.
func (s *Store) list(dir string, own bool) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return // another process has removed the folder
	}
	if err != nil {
		s.fail("listing", dir, err)
		return
	}
	type found struct {
		file
		used time.Time
	}
	var all []found
	for _, e := range entries {
		n, err := parseName(e.Name())
		info, infoErr := e.Info()
		switch {
		case infoErr != nil: // removed meanwhile
		case err == nil && info.Mode().IsRegular():
			all = append(all, found{file{name: n, dir: dir, size: info.Size()}, info.ModTime()})
		case own && e.Name() != lockName && info.Mode().IsRegular(): // its process ended while writing it
			_ = os.Remove(filepath.Join(dir, e.Name()))
		}
	}
	slices.SortFunc(all, func(a, b found) int { return a.used.Compare(b.used) })
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range all {
		s.add(&all[i].file, Key{}, own)
	}
}

// removeDeserted removes a folder that no process has used since a time. It returns false if it stays.
func removeDeserted(dir string, since time.Time) (removed bool, err error) {
	at := filepath.Join(dir, lockName)
	st, err := os.Stat(at)
	if errors.Is(err, fs.ErrNotExist) { // a process that has just made the folder locks it next
		st, err = os.Stat(dir)
	}
	if err != nil || st.ModTime().After(since) {
		return false, nil
	}
	lock, err := flock.Open(at, flock.Own)
	if lock != nil {
		defer lock.Close()
	}
	if err != nil {
		return false, nil // it is in use
	}
	return true, os.RemoveAll(dir)
}

// removeDeserted removes a folder that no process has used for a time. It returns false if a process still reads it.
func (s *Store) removeDeserted(dir string, long time.Duration) bool {
	removed, err := removeDeserted(dir, time.Now().Add(-long))
	if err != nil {
		s.fail("removing", dir, err)
	}
	return removed
}

// Forget removes the files of this process's folder and of folders that no process holds. It drops
// other processes' files from the index until the next Rescan.
func (s *Store) Forget() {
	s.disk.Lock()
	defer s.disk.Unlock()
	s.mu.Lock()
	all := slices.Clone(s.heap)
	for _, list := range s.files {
		for _, f := range slices.Clone(list) {
			s.forget(f)
		}
	}
	s.mu.Unlock()
	for _, f := range all {
		s.discard(f)
	}
	entries, err := os.ReadDir(s.root)
	if err != nil {
		s.fail("listing", s.root, err)
	}
	for _, e := range entries {
		if dir := filepath.Join(s.root, e.Name()); isFolder(e) && dir != s.dir {
			s.removeDeserted(dir, 0)
		}
	}
}

// isFolder reports whether it can be the folder of a process.
func isFolder(e fs.DirEntry) bool {
	_, err := strconv.ParseUint(e.Name(), 10, 16)
	return err == nil && e.IsDir()
}

// remove removes a file from the disk. It returns false if the file is still there.
func (s *Store) remove(f *file) bool {
	if err := s.unlink(f.path()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.fail("removing", f.path(), err)
		return false
	}
	return true
}

// discard removes a file of our own that is not listed any more. If it cannot, the file counts until makeRoom can. The
// caller holds s.disk.
func (s *Store) discard(f *file) {
	if s.remove(f) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stuck = append(s.stuck, f)
	s.bytes += f.size
}

// unstick frees the bytes of a stuck file that is not on the disk any more. s.mu must be held.
func (s *Store) unstick(path string) {
	s.stuck = slices.DeleteFunc(s.stuck, func(f *file) bool {
		if f.path() != path {
			return false
		}
		s.bytes -= f.size
		return true
	})
}

// makeRoom removes stuck files, and the files with the lowest value until size more bytes fit. It returns false if they
// do not fit, because a file cannot be removed. Such a file stays in use. The caller holds s.disk.
func (s *Store) makeRoom(size int64) bool {
	s.mu.Lock()
	stuck := slices.Clone(s.stuck)
	s.mu.Unlock()
	for _, f := range stuck {
		if s.remove(f) {
			s.mu.Lock()
			s.unstick(f.path())
			s.mu.Unlock()
		}
	}
	for {
		s.mu.Lock()
		fits := s.bytes+size <= s.limit
		var f *file
		if !fits && len(s.heap) > 0 {
			f = s.heap[0]
		}
		s.mu.Unlock()
		if f == nil || !s.remove(f) {
			return fits
		}
		s.mu.Lock()
		s.clock = max(s.clock, f.value)
		s.forget(f)
		s.stats.Out++
		s.mu.Unlock()
	}
}

func (f *file) path() string { return filepath.Join(f.dir, f.name.String()) }

// fail records a disk error. It only logs it.
func (s *Store) fail(what, path string, err error) {
	s.mu.Lock()
	s.stats.Failed++
	s.mu.Unlock()
	s.warn("the disk of the prefix cache fails: "+what, "file", path, "error", err)
}

func (s *Store) warn(text string, args ...any) {
	if ok, left, _ := s.lines.Allow(text, time.Now()); ok {
		s.log.Warn(text, append(args, "left_out", left)...)
	}
}

// evictionHeap is a heap of our own files; the first is evicted first.
type evictionHeap []*file

func (w evictionHeap) Len() int { return len(w) }
func (w evictionHeap) Less(i, j int) bool {
	a, b := w[i], w[j]
	switch {
	case a.value != b.value:
		return a.value < b.value
	case a.name.at != b.name.at:
		return a.name.at > b.name.at
	}
	return a.number < b.number
}
func (w evictionHeap) Swap(i, j int) { w[i], w[j] = w[j], w[i]; w[i].heapIndex, w[j].heapIndex = i, j }
func (w *evictionHeap) Push(x any)   { f := x.(*file); f.heapIndex = len(*w); *w = append(*w, f) }
func (w *evictionHeap) Pop() any {
	last := len(*w) - 1
	f := (*w)[last]
	(*w)[last], *w = nil, (*w)[:last]
	f.heapIndex = none
	return f
}
