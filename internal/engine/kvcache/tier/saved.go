package tier

import (
	"container/list"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/shoal-llm/shoal/internal/lograte"
	"github.com/shoal-llm/shoal/internal/options"
	"github.com/shoal-llm/shoal/internal/sys/flock"
)

// A cache of an idle session is one file below the folder of a Scratch:
//
//	DIR/sessions/0, 1, ...    one folder per writing process, which holds its lock
//	DIR/sessions/0/KEY-UNTIL  a cache, and the Unix milliseconds of the end of its session
//
// The file is a header, then the pieces of the cache, each followed by its CRC-32C:
//
//	magic [8]  form [32]  key [32]  digest [32]  until int64  prompt, tokens uint32  bytes after the header int64  CRC-32C uint32
//
// The reader derives the sizes of pieces from its own store, and allocates no memory by numbers of the file.
const (
	savedMagic  = "shoalsc1"
	savedHeader = len(savedMagic) + 3*32 + 8 + 2*4 + 8 + 4
	savedFolder = "sessions"
	sumBytes    = 4
	// maxSaved is the maximum number of files of a process.
	maxSaved = 1 << 16
)

// SavedCache describes the cache of an idle session in a file.
type SavedCache struct {
	Key    Key      // of the session
	Form   [32]byte // identifies the pieces and the layout of their rows
	Digest [32]byte // of everything that the rows depend on: tokens, policy, adapter
	Prompt int      // tokens that prefill read
	Tokens int      // tokens in the cache
	Until  int64    // end of the session, Unix milliseconds
}

// SavedStats are the present caches of a process and their bytes, and counts since the start.
type SavedStats struct {
	Bytes                          int64
	Caches                         int
	Written, Read, Removed, Failed uint64 // Removed: to free bytes; Failed: damaged files and failed writes
}

// Saved stores caches of idle sessions. Its methods may be called concurrently. Find and Stats do not wait for the
// disk. Requests to read, write, list or remove files wait for at most SavedTimeout; the disk is then not used for
// savedRest, and until the request has ended. A nil Saved has no caches.
type Saved struct {
	root, dir string
	scratch   *Scratch // has the limit
	log       *slog.Logger
	lines     lograte.Limiter
	lock      *os.File
	now       func() time.Time

	mu      sync.Mutex
	files   map[Key]*list.Element
	order   *list.List       // of *savedFile, the oldest first
	removed map[string]int64 // sizes of files that are not in order any more and not removed yet, by path
	stats   SavedStats

	disk   health // of all requests
	writes health // a cache that cannot be written is of no use only to its session
	began  time.Time
	open   func(path string) (SavedMedium, error)
	create func() (SavedMedium, error)
	remove func(path string) error
	read   func(dir string) ([]fs.DirEntry, error)
}

// SavedMedium is an open file with a cache.
type SavedMedium interface {
	io.Reader
	io.Writer
	io.Closer
	Stat() (fs.FileInfo, error)
	Name() string
}

const (
	// SavedTimeout is the longest time that a piece of a cache takes to be read or written.
	SavedTimeout = 5 * time.Second
	savedRest    = time.Minute
)

type savedFile struct {
	SavedCache
	path string
	size int64
}

// openSaved locks a free folder below root for this process, and lists its files.
func openSaved(root string, scratch *Scratch, log *slog.Logger, now func() time.Time) (*Saved, error) {
	if err := private(root, options.Name("kv-disk")); err != nil {
		return nil, err
	}
	s := &Saved{root: root, scratch: scratch, log: log, now: now, files: map[Key]*list.Element{}, order: list.New(),
		removed: map[string]int64{}, began: now(), remove: os.Remove, read: os.ReadDir}
	s.open = func(path string) (SavedMedium, error) { return os.Open(path) }
	s.create = func() (SavedMedium, error) { return os.CreateTemp(s.dir, writingPrefix+"*") } // 0600
	var err error
	if s.dir, s.lock, err = takeFolder(root, options.Name("kv-disk")); err != nil {
		return nil, err
	}
	s.Sweep()
	s.list()
	return s, nil
}

func (s *Saved) close() {
	if s != nil {
		_ = s.lock.Close()
	}
}

// list registers the files of an earlier process, the oldest first, and removes all other entries.
func (s *Saved) list() {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		s.fail("listing", s.dir, err)
		return
	}
	type found struct {
		savedFile
		at time.Time
	}
	var all []found
	for _, e := range entries {
		path := filepath.Join(s.dir, e.Name())
		info, err := e.Info()
		if e.Name() == lockName || err != nil {
			continue
		}
		c, err := s.readHeader(path)
		if err != nil || e.Name() != c.name() || len(all) == maxSaved {
			_ = os.Remove(path) // such as an unfinished file
			continue
		}
		all = append(all, found{savedFile{c, path, info.Size()}, info.ModTime()})
	}
	slices.SortFunc(all, func(a, b found) int { return a.at.Compare(b.at) })
	for i := range all {
		s.scratch.kept.Add(all[i].size)
		s.add(&all[i].savedFile)
	}
	for s.scratch.kept.Load() > s.scratch.limit && s.removeOldest() {
	}
}

// add registers a file, and removes the previous file of its session.
func (s *Saved) add(f *savedFile) {
	s.mu.Lock()
	old := s.drop(s.files[f.Key])
	s.uncount(f.path) // it replaced a file of this name
	s.files[f.Key] = s.order.PushBack(f)
	s.mu.Unlock()
	if old != nil && old.path != f.path {
		_ = s.unlink(old.path)
	}
}

// drop removes a file from the index. Its bytes count until unlink has removed it. s.mu must be held.
func (s *Saved) drop(at *list.Element) *savedFile {
	if at == nil {
		return nil
	}
	f := s.order.Remove(at).(*savedFile)
	delete(s.files, f.Key)
	s.removed[f.path] = f.size
	return f
}

// uncount frees the bytes of a file that is not on the disk any more. s.mu must be held.
func (s *Saved) uncount(path string) {
	s.scratch.kept.Add(-s.removed[path])
	delete(s.removed, path)
}

// removable returns the bytes of all complete caches.
func (s *Saved) removable() (n int64) {
	if s == nil {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for at := s.order.Front(); at != nil; at = at.Next() {
		n += at.Value.(*savedFile).size
	}
	return n
}

// removeOldest removes the oldest cache. It returns false if there is none, or its file cannot be removed.
func (s *Saved) removeOldest() bool {
	if s == nil {
		return false
	}
	s.mu.Lock()
	f := s.drop(s.order.Front())
	if f != nil {
		s.stats.Removed++
	}
	s.mu.Unlock()
	return f != nil && s.unlink(f.path) == nil
}

// Remove drops the cache of a session, without waiting for the disk. The caller runs the returned function, which removes
// its files, also from folders that no process holds. A cache that is written after Remove stays.
func (s *Saved) Remove(k Key) (files func() error) {
	if s == nil {
		return func() error { return nil }
	}
	ordered, prefix := s.now(), hex.EncodeToString(k[:])+"-"
	s.mu.Lock()
	s.drop(s.files[k])
	var paths []string
	for path := range s.removed {
		if strings.HasPrefix(filepath.Base(path), prefix) {
			paths = append(paths, path)
		}
	}
	s.mu.Unlock()
	return func() error {
		failed := s.discard(paths)
		listing := s.folders(func(dir string) bool { return dir != s.dir }, func(dir string, entries []fs.DirEntry) {
			for _, e := range entries {
				if !strings.HasPrefix(e.Name(), prefix) {
					continue
				}
				path := filepath.Join(dir, e.Name())
				failed = errors.Join(failed, s.request("removing", path, func() error {
					if writtenBy(e, ordered) && !held(dir) {
						return s.unlink(path)
					}
					return nil
				}))
			}
		})
		return errors.Join(failed, listing)
	}
}

// discard removes those files that are still to be removed.
func (s *Saved) discard(paths []string) (err error) {
	for _, path := range paths {
		s.mu.Lock()
		_, removed := s.removed[path]
		s.mu.Unlock()
		if removed {
			err = errors.Join(err, s.request("removing", path, func() error { return s.unlink(path) }))
		}
	}
	return err
}

// request is within for a request whose late end has no consequences.
func (s *Saved) request(doing, path string, do func() error) error {
	return s.within(doing, path, do, func(error) {})
}

// Sweep removes the caches of sessions that are over, including those of processes that have ended, and files whose
// removal has failed before. After an hour it also removes folders of processes that ended a day ago. Until then,
// processes that started together with this one take their folders again.
func (s *Saved) Sweep() {
	if s == nil {
		return
	}
	now := s.now()
	s.mu.Lock()
	for at := s.order.Front(); at != nil; {
		next := at.Next()
		if at.Value.(*savedFile).Until <= now.UnixMilli() {
			s.drop(at)
		}
		at = next
	}
	paths := slices.Collect(maps.Keys(s.removed))
	s.mu.Unlock()
	_ = s.discard(paths)
	lock := filepath.Join(s.dir, lockName)
	_ = s.request("writing", lock, func() error { return os.Chtimes(lock, now, now) }) // the time at which this process was last here
	all := func(string) bool { return true }
	_ = s.folders(all, func(dir string, entries []fs.DirEntry) {
		if dir != s.dir && now.Sub(s.began) >= time.Hour {
			stays := false
			err := s.request("removing", dir, func() error {
				removed, err := removeDeserted(dir, now.Add(-savedDeserted))
				if err != nil {
					s.fail("removing", dir, err)
				}
				if stays = !removed; stays {
					return nil
				}
				return err
			})
			if err != nil || !stays {
				return
			}
		}
		for _, e := range entries {
			path := filepath.Join(dir, e.Name())
			switch until, ok := savedUntil(e.Name()); {
			case ok && until <= now.UnixMilli():
				_ = s.request("removing", path, func() error { return s.unlink(path) })
			case strings.HasPrefix(e.Name(), writingPrefix):
				_ = s.request("removing", path, func() error {
					if writtenBy(e, now.Add(-time.Hour)) { // by a process that has died
						return s.unlink(path)
					}
					return nil
				})
			}
		}
	})
}

// savedDeserted is the time after which the caches of a process that is gone are removed.
const savedDeserted = 24 * time.Hour

// folders calls got for each process's folder for which wanted returns true. It returns the errors of
// folders that cannot be listed.
func (s *Saved) folders(wanted func(dir string) bool, got func(dir string, entries []fs.DirEntry)) (failed error) {
	list, err := s.entries(s.root)
	if err != nil {
		return err
	}
	for _, d := range list {
		dir := filepath.Join(s.root, d.Name())
		if !isFolder(d) || !wanted(dir) {
			continue
		}
		entries, err := s.entries(dir)
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		got(dir, entries)
	}
	return failed
}

// entries lists a folder.
func (s *Saved) entries(dir string) ([]fs.DirEntry, error) {
	var list []fs.DirEntry
	err := s.request("listing", dir, func() (err error) {
		if list, err = s.read(dir); err != nil {
			s.fail("listing", dir, err)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// held reports whether a process holds a folder.
func held(dir string) bool {
	lock, err := flock.Open(filepath.Join(dir, lockName), flock.Own)
	if lock != nil {
		lock.Close()
	}
	return err != nil
}

// writtenBy reports whether the last write of a file was at a time or before it.
func writtenBy(e fs.DirEntry, at time.Time) bool {
	info, err := e.Info()
	return err == nil && !info.ModTime().After(at)
}

const writingPrefix = "writing-"

// Until returns the end of a session that ends in a number of milliseconds.
func (s *Saved) Until(millis int64) int64 { return s.now().UnixMilli() + millis }

// expired reports whether the session of a cache has ended.
func (s *Saved) expired(c *SavedCache) bool { return c.Until <= s.now().UnixMilli() }

// Find returns the cache of a session. While the disk is not used it finds none.
func (s *Saved) Find(k Key) (SavedCache, bool) {
	if s == nil {
		return SavedCache{}, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	at := s.files[k]
	if at == nil || !s.disk.ok(s.now()) || s.expired(&at.Value.(*savedFile).SavedCache) {
		return SavedCache{}, false
	}
	return at.Value.(*savedFile).SavedCache, true
}

// untilSlack is the time by which the ends of equal caches may differ: that of a message between two nodes.
const untilSlack = 5 * time.Second

// Has reports whether a file has this cache, until the same time or later. While the disk is not used it returns false.
func (s *Saved) Has(c SavedCache) bool {
	have, ok := s.Find(c.Key)
	if !ok || have.Until < c.Until-untilSlack.Milliseconds() {
		return false
	}
	have.Until = c.Until
	return have == c
}

// Stats returns the counters.
func (s *Saved) Stats() SavedStats {
	if s == nil {
		return SavedStats{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.stats
	out.Bytes, out.Caches = s.scratch.kept.Load(), s.order.Len()
	return out
}

// unlink removes a file, and then frees its bytes. It waits for the disk: the caller has a deadline.
func (s *Saved) unlink(path string) error {
	if err := s.remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.fail("removing", path, err)
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.uncount(path)
	return nil
}

// fail counts and logs an error of the disk or of a file. The failed operation is named by what.
func (s *Saved) fail(what, path string, err error) {
	s.mu.Lock()
	s.stats.Failed++
	s.mu.Unlock()
	if ok, left, _ := s.lines.Allow(what, s.now()); ok {
		s.log.Warn("cannot use the file of a session's cache; the next turn computes all tokens", "operation", what, "file", path,
			"error", err, "left_out", left)
	}
}

// name is the name of the file of a cache.
func (c *SavedCache) name() string {
	return hex.EncodeToString(c.Key[:]) + "-" + strconv.FormatInt(c.Until, 10)
}

// savedUntil returns the end of the session in the name of a file.
func savedUntil(name string) (until int64, ok bool) {
	key, end, cut := strings.Cut(name, "-")
	if !cut || len(key) != 2*len(Key{}) {
		return 0, false
	}
	until, err := strconv.ParseInt(end, 10, 64)
	return until, err == nil
}
