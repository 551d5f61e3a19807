// Package tier keeps blocks of the prefix cache in files, so that what was read once is
// found after memory needed the room, after a crash, and after a restart.
//
//	DIR/0, DIR/1, ...     a folder a process that writes, under its lock
//	DIR/0/KEY-AT-LO-HI    block AT of a text: the rows of KV heads [LO, HI), every layer
//
// Every process reads all folders, so what sockets of another number of nodes on this
// machine have written is found as well. A file is written under another name first and
// never changed; each head in it has a hash of its own, which is checked when it is read.
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
	"github.com/shoal-llm/shoal/internal/sys/flock"
)

// Key names a block by all that its rows depend on: see batcher, whose hash chain it is.
type Key [32]byte

// Store is one process's folder, and what it reads of the others'. Its methods may be
// called from any goroutine; Read, Write, Rescan and Forget wait for the disk, the others do not.
type Store struct {
	dir   string // of this process
	root  string
	limit int64
	log   *slog.Logger
	lines lograte.Limiter
	lock  *os.File

	disk   sync.Mutex // one write, removal or scan at a time
	mu     sync.Mutex // of what follows; never held over the disk
	files  map[Key][]*file
	worth  worth // files of our own
	bytes  int64 // of these
	clock  int64
	number uint64
	stats  Stats
}

// Stats are figures since the start, but Bytes and Blocks, which are now in this process's folder.
type Stats struct {
	Bytes, Limit                                 int64
	Blocks                                       int
	Written, Read, Dropped, Damaged, Failed, Out uint64 // blocks; Out: removed for others
}

// file is a block, or the part of it that one socket held.
type file struct {
	name   name
	dir    string
	size   int64
	uses   int64
	value  int64
	number uint64 // of its last use
	at     int    // in worth; none: another process's
}

const none = -1

// Open takes a free folder under root for this process, and lists what is there. limit is
// the most bytes that this process keeps.
func Open(root string, limit int64, log *slog.Logger) (*Store, error) {
	if limit < 1 {
		return nil, fmt.Errorf("tier: --prefix-disk-size %d: want a number of bytes", limit)
	}
	if err := private(root, "--prefix-disk"); err != nil {
		return nil, err
	}
	s := &Store{root: root, limit: limit, log: log, files: map[Key][]*file{}}
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

// take finds a folder that no process holds.
func (s *Store) take() error {
	for i := range folders {
		dir := filepath.Join(s.root, strconv.Itoa(i))
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("tier: --prefix-disk: %w", err)
		}
		f, err := flock.Open(filepath.Join(dir, lockName), flock.Own)
		if errors.Is(err, flock.ErrHeld) {
			f.Close()
			continue
		}
		if err != nil {
			return fmt.Errorf("tier: --prefix-disk: %w", err)
		}
		s.dir, s.lock = dir, f
		return nil
	}
	return fmt.Errorf("tier: --prefix-disk %s: %d processes use it", s.root, folders)
}

// Close gives the folder to the next process; what is in it stays.
func (s *Store) Close() error { return s.lock.Close() }

// Stats reads the figures.
func (s *Store) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stats
	st.Bytes, st.Limit, st.Blocks = s.bytes, s.limit, len(s.worth)
	return st
}

// Drop counts a block that was not written, since others waited for the disk already.
func (s *Store) Drop() {
	s.mu.Lock()
	s.stats.Dropped++
	s.mu.Unlock()
	s.warn("the disk is slower than prompts are read: blocks are not kept in files")
}

// Has is how many of the first keys, blocks of a text from number at on, are there with all
// of the heads.
func (s *Store) Has(keys []Key, at int, heads tensor.Span) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for n < len(keys) && len(s.covering(keys[n], at+n, heads)) > 0 {
		n++
	}
	return n
}

// covering are files that together have the heads, in their order; nil: some are missing.
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

// own says whether this process's folder has the block.
func (s *Store) own(n name) bool {
	for _, f := range s.files[n.key] {
		if f.at != none && f.name == n {
			return true
		}
	}
	return false
}

// Lacks says whether Write of the block would write anything.
func (s *Store) Lacks(k Key, at int, heads tensor.Span) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.own(name{k, at, heads})
}

// use notes that a file was used: what is worth least goes first, by how often it was used,
// above the worth of what has gone; then the end of a text before its beginning.
func (s *Store) use(f *file) {
	s.number++
	f.uses++
	f.value, f.number = s.clock+f.uses, s.number
	if f.at != none {
		heap.Fix(&s.worth, f.at)
	}
}

// add takes up a file, worth no more than the block before it in its text, without which it is
// of no use.
func (s *Store) add(f *file, before Key, own bool) {
	s.number++
	f.at, f.uses, f.value, f.number = none, 1, s.clock+1, s.number
	for _, o := range s.files[before] {
		if o.at != none {
			f.value = min(f.value, o.value)
		}
	}
	s.files[f.name.key] = append(s.files[f.name.key], f)
	if own {
		heap.Push(&s.worth, f)
		s.bytes += f.size
	}
}

func (s *Store) forget(f *file) {
	list := slices.DeleteFunc(s.files[f.name.key], func(o *file) bool { return o == f })
	if s.files[f.name.key] = list; len(list) == 0 {
		delete(s.files, f.name.key)
	}
	if f.at != none {
		heap.Remove(&s.worth, f.at)
		s.bytes -= f.size
	}
}

// Rescan lists the folders again: those of other processes for what they have written, and
// with the first call our own. Folders that nobody has held for an hour go.
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
			if f.at == none {
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

// list takes up the files of a folder, the longest unused first.
func (s *Store) list(dir string, own bool) {
	entries, err := os.ReadDir(dir)
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
		info, gone := e.Info()
		switch {
		case gone != nil: // removed meanwhile
		case err == nil && info.Mode().IsRegular():
			all = append(all, found{file{name: n, dir: dir, size: info.Size()}, info.ModTime()})
		case own && e.Name() != lockName && info.Mode().IsRegular(): // was being written when its process ended
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

// removeDeserted removes a folder that nobody has held for so long; false: it is read.
func (s *Store) removeDeserted(dir string, long time.Duration) bool {
	at := filepath.Join(dir, lockName)
	if st, err := os.Stat(at); err == nil && time.Since(st.ModTime()) < long {
		return false
	}
	lock, err := flock.Open(at, flock.Own)
	if lock != nil {
		defer lock.Close()
	}
	if err != nil {
		return false // it is in use
	}
	if err := os.RemoveAll(dir); err != nil {
		s.fail("removing", dir, err)
	}
	return true
}

// Forget removes every file of this process's folder and of those that no process holds, and
// knows no other's until the next Rescan.
func (s *Store) Forget() {
	s.disk.Lock()
	defer s.disk.Unlock()
	s.mu.Lock()
	all := slices.Clone(s.worth)
	for _, list := range s.files {
		for _, f := range slices.Clone(list) {
			s.forget(f)
		}
	}
	s.mu.Unlock()
	for _, f := range all {
		s.remove(f)
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

// isFolder says whether it can be the folder of a process.
func isFolder(e fs.DirEntry) bool {
	_, err := strconv.ParseUint(e.Name(), 10, 16)
	return err == nil && e.IsDir()
}

func (s *Store) remove(f *file) {
	if err := os.Remove(f.path()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.fail("removing", f.path(), err)
	}
}

// makeRoom removes files of the least worth until so many bytes more fit.
func (s *Store) makeRoom(size int64) {
	s.mu.Lock()
	var gone []*file
	for s.bytes+size > s.limit && len(s.worth) > 0 {
		f := s.worth[0]
		s.clock = max(s.clock, f.value)
		s.forget(f)
		s.stats.Out++
		gone = append(gone, f)
	}
	s.mu.Unlock()
	for _, f := range gone {
		s.remove(f)
	}
}

func (f *file) path() string { return filepath.Join(f.dir, f.name.String()) }

// fail notes trouble with the disk: never more than a line of a log.
func (s *Store) fail(what, path string, err error) {
	s.mu.Lock()
	s.stats.Failed++
	s.mu.Unlock()
	s.warn("the disk of the prefix cache fails: "+what, "file", path, "error", err)
}

func (s *Store) warn(text string, args ...any) {
	if ok, left, _ := s.lines.Allow(text, time.Now()); ok {
		s.log.Warn(text, append(args, "like_it_left_out", left)...)
	}
}

// worth orders our own files, the first to go first.
type worth []*file

func (w worth) Len() int { return len(w) }
func (w worth) Less(i, j int) bool {
	a, b := w[i], w[j]
	switch {
	case a.value != b.value:
		return a.value < b.value
	case a.name.at != b.name.at:
		return a.name.at > b.name.at
	}
	return a.number < b.number
}
func (w worth) Swap(i, j int) { w[i], w[j] = w[j], w[i]; w[i].at, w[j].at = i, j }
func (w *worth) Push(x any)   { f := x.(*file); f.at = len(*w); *w = append(*w, f) }
func (w *worth) Pop() any {
	last := len(*w) - 1
	f := (*w)[last]
	(*w)[last], *w = nil, (*w)[:last]
	f.at = none
	return f
}
