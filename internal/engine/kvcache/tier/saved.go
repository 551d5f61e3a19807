package tier

import (
	"bytes"
	"container/list"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/shoal-llm/shoal/internal/lograte"
	"github.com/shoal-llm/shoal/internal/options"
	"github.com/shoal-llm/shoal/internal/sys/crc32c"
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

// Saved stores caches of idle sessions. Its methods may be called concurrently. All but Find and Stats wait
// for the disk. A nil Saved has no caches.
type Saved struct {
	root, dir string
	scratch   *Scratch // has the limit
	log       *slog.Logger
	lines     lograte.Limiter
	lock      *os.File
	now       func() time.Time

	mu    sync.Mutex
	files map[Key]*list.Element
	order *list.List // of *savedFile, the oldest first
	stats SavedStats
	rests time.Time // no cache is written before this time, after a failure
}

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
	s := &Saved{root: root, scratch: scratch, log: log, now: now, files: map[Key]*list.Element{}, order: list.New()}
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
		c, _, err := readSaved(path)
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
	old := s.forget(s.files[f.Key])
	s.files[f.Key] = s.order.PushBack(f)
	s.mu.Unlock()
	if old != nil && old.path != f.path {
		s.unlink(old.path)
	}
}

// forget drops a file from the index. s.mu must be held.
func (s *Saved) forget(at *list.Element) *savedFile {
	if at == nil {
		return nil
	}
	f := s.order.Remove(at).(*savedFile)
	delete(s.files, f.Key)
	s.scratch.kept.Add(-f.size)
	return f
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

// removeOldest removes the oldest cache. It returns false if there is none.
func (s *Saved) removeOldest() bool {
	if s == nil {
		return false
	}
	s.mu.Lock()
	f := s.forget(s.order.Front())
	if f != nil {
		s.stats.Removed++
	}
	s.mu.Unlock()
	if f == nil {
		return false
	}
	s.unlink(f.path)
	return true
}

// Remove removes the cache of a session.
func (s *Saved) Remove(k Key) {
	if s == nil {
		return
	}
	s.mu.Lock()
	f := s.forget(s.files[k])
	s.mu.Unlock()
	if f != nil {
		s.unlink(f.path)
	}
}

// Sweep removes the caches of sessions that are over, including those of processes that have ended.
func (s *Saved) Sweep() {
	if s == nil {
		return
	}
	now := s.now().UnixMilli()
	s.mu.Lock()
	for at := s.order.Front(); at != nil; {
		next := at.Next()
		if at.Value.(*savedFile).Until <= now {
			s.forget(at) // its file is removed below
		}
		at = next
	}
	s.mu.Unlock()
	folders, err := os.ReadDir(s.root)
	if err != nil {
		s.fail("listing", s.root, err)
		return
	}
	for _, d := range folders {
		if !isFolder(d) {
			continue
		}
		entries, err := os.ReadDir(filepath.Join(s.root, d.Name()))
		if err != nil {
			s.fail("listing", d.Name(), err)
			continue
		}
		for _, e := range entries {
			until, ok := savedUntil(e.Name())
			if ok && until <= now || s.left(e, now) {
				s.unlink(filepath.Join(s.root, d.Name(), e.Name()))
			}
		}
	}
}

// left reports whether an entry is an unfinished file of a process that has died: its last write was over
// an hour ago.
func (s *Saved) left(e fs.DirEntry, now int64) bool {
	info, err := e.Info()
	return err == nil && strings.HasPrefix(e.Name(), writingPrefix) && now-info.ModTime().UnixMilli() > time.Hour.Milliseconds()
}

const writingPrefix = "writing-"

// Find returns the cache of a session.
func (s *Saved) Find(k Key) (SavedCache, bool) {
	if s == nil {
		return SavedCache{}, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	at := s.files[k]
	if at == nil || at.Value.(*savedFile).Until <= s.now().UnixMilli() {
		return SavedCache{}, false
	}
	return at.Value.(*savedFile).SavedCache, true
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

func (s *Saved) unlink(path string) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.fail("removing", path, err)
	}
}

// fail counts and logs an error of the disk or of a file. what is the failed operation.
func (s *Saved) fail(what, path string, err error) {
	s.mu.Lock()
	s.stats.Failed++
	s.mu.Unlock()
	if ok, left, _ := s.lines.Allow(what, s.now()); ok {
		s.log.Warn("cannot use the file of a session's cache; the next turn computes all tokens", "operation", what, "file", path,
			"error", err, "left_out", left)
	}
}

// SavedWriter writes the cache of an idle session.
type SavedWriter struct {
	s    *Saved
	c    SavedCache
	f    *os.File
	left int64
	size int64
	over bool
}

// SavedBytes returns the size of a file in bytes. bytes is the sum of its pieces.
func SavedBytes(pieces int, bytes int64) int64 {
	return int64(savedHeader) + bytes + int64(pieces)*sumBytes
}

// Until returns the time in millis milliseconds, as Unix milliseconds.
func (s *Saved) Until(millis int64) int64 { return s.now().UnixMilli() + millis }

// Create begins the file of a cache. bytes is the sum of its pieces. The caller ends it
// with Commit or Abort.
func (s *Saved) Create(c SavedCache, pieces int, bytes int64) (*SavedWriter, error) {
	size := SavedBytes(pieces, bytes)
	switch {
	case s == nil:
		return nil, fmt.Errorf("%w: there is no folder for caches of idle sessions", ErrScratch)
	case s.scratch.Resting() || s.resting():
		return nil, fmt.Errorf("%w: no cache is written for %v after a failed write", ErrScratch, savedRest)
	case c.Until <= s.now().UnixMilli():
		return nil, fmt.Errorf("%w: the session is over", ErrScratch)
	case !s.scratch.reserve(size, &s.scratch.kept):
		return nil, fmt.Errorf("%w: %d bytes asked, the limit is %d", ErrScratch, size, s.scratch.limit)
	}
	w := &SavedWriter{s: s, c: c, size: size, left: size - int64(savedHeader)}
	var err error
	if w.f, err = os.CreateTemp(s.dir, writingPrefix+"*"); err == nil { // 0600
		_, err = w.f.Write(encodeSaved(&c, w.left))
	}
	if err != nil {
		return nil, w.failed(err)
	}
	return w, nil
}

// Piece appends a piece. After an error the caller must call Abort.
func (w *SavedWriter) Piece(b []byte) error {
	if w.left -= int64(len(b)) + sumBytes; w.left < 0 {
		return fmt.Errorf("%w: a piece of %d bytes exceeds the bytes of Create", ErrScratch, len(b))
	}
	_, err := w.f.Write(b)
	if err == nil {
		_, err = w.f.Write(binary.LittleEndian.AppendUint32(nil, crc32c.Of(b)))
	}
	if err != nil {
		return w.failed(err)
	}
	return nil
}

// failed aborts after an error of the disk. Other files stay in use: a cache of an idle session must not delay
// sequences that run. No cache is written for a while.
func (w *SavedWriter) failed(err error) error {
	w.Abort()
	w.s.fail("writing", w.s.dir, err)
	w.s.scratch.yield(err)
	w.s.mu.Lock()
	w.s.rests = w.s.now().Add(savedRest)
	w.s.mu.Unlock()
	return fmt.Errorf("%w: %w", ErrScratch, err)
}

// savedRest is the time after a failed write in which no cache is written.
const savedRest = time.Minute

func (s *Saved) resting() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now().Before(s.rests)
}

// Abort removes the file. It has no effect after Commit or Abort.
func (w *SavedWriter) Abort() {
	if w.over {
		return
	}
	w.over = true
	if w.f != nil {
		_ = w.f.Close()
		w.s.unlink(w.f.Name())
	}
	w.s.scratch.kept.Add(-w.size)
}

// Commit completes the file, which replaces the previous file of the session.
func (w *SavedWriter) Commit() error {
	if w.left != 0 {
		w.Abort()
		return fmt.Errorf("%w: %d bytes of the cache were not written", ErrScratch, w.left)
	}
	// Without fsync: after a power loss the checksums detect missing bytes.
	path := filepath.Join(w.s.dir, w.c.name())
	err := w.f.Close()
	if err == nil {
		err = os.Rename(w.f.Name(), path)
	}
	if err != nil {
		return w.failed(err)
	}
	w.over = true
	w.s.mu.Lock()
	w.s.stats.Written++
	many := w.s.order.Len() >= maxSaved
	w.s.mu.Unlock()
	if many {
		w.s.removeOldest()
	}
	w.s.add(&savedFile{w.c, path, w.size})
	return nil
}

// SavedReader reads the pieces of a cache.
type SavedReader struct {
	s    *Saved
	f    *os.File
	path string
	key  Key
	left int64
}

// Open opens the cache of a session. Its header must equal c but for Until, and its pieces have bytes in all. The
// caller closes the reader. Errors wrap ErrDamaged if the file is damaged or has another cache; it is then removed.
func (s *Saved) Open(c SavedCache, pieces int, bytes int64) (*SavedReader, error) {
	if s == nil {
		return nil, fmt.Errorf("%w: there is no folder for caches of idle sessions", ErrScratch)
	}
	s.mu.Lock()
	at := s.files[c.Key]
	var path string
	if at != nil {
		path = at.Value.(*savedFile).path
	}
	s.mu.Unlock()
	if at == nil {
		return nil, fmt.Errorf("%w: this node has no cache of the session", ErrScratch)
	}
	r := &SavedReader{s: s, path: path, key: c.Key, left: SavedBytes(pieces, bytes) - int64(savedHeader)}
	have, f, err := openSavedFile(path)
	if err != nil {
		return nil, r.bad(err)
	}
	r.f = f
	c.Until = have.Until
	st, err := f.Stat()
	switch {
	case err != nil:
	case have != c:
		err = fmt.Errorf("%w: it has the cache of another state of the session, or in another form", ErrDamaged)
	case st.Size() != SavedBytes(pieces, bytes):
		err = fmt.Errorf("%w: %d bytes, not %d", ErrDamaged, st.Size(), SavedBytes(pieces, bytes))
	}
	if err != nil {
		r.Close()
		return nil, r.bad(err)
	}
	return r, nil
}

// Piece fills b with the next piece, and checks its sum.
func (r *SavedReader) Piece(b []byte) error {
	var sum [sumBytes]byte
	_, err := readFull(r.f, b)
	if err == nil {
		_, err = readFull(r.f, sum[:])
	}
	if err == nil && binary.LittleEndian.Uint32(sum[:]) != crc32c.Of(b) {
		err = fmt.Errorf("%w: the checksum of a piece of %d bytes is wrong", ErrDamaged, len(b))
	}
	if err != nil {
		return r.bad(err)
	}
	if r.left -= int64(len(b)) + sumBytes; r.left == 0 {
		r.s.mu.Lock()
		r.s.stats.Read++
		r.s.mu.Unlock()
	}
	return nil
}

// bad counts a failed read, and removes the file.
func (r *SavedReader) bad(err error) error {
	r.s.fail("reading", r.path, err)
	r.s.mu.Lock()
	at := r.s.files[r.key]
	if at != nil && at.Value.(*savedFile).path == r.path {
		r.s.forget(at)
	}
	r.s.mu.Unlock()
	r.s.unlink(r.path)
	return err
}

// Close closes the file.
func (r *SavedReader) Close() { _ = r.f.Close() }

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

func encodeSaved(c *SavedCache, body int64) []byte {
	b := append(make([]byte, 0, savedHeader), savedMagic...)
	b = append(append(append(b, c.Form[:]...), c.Key[:]...), c.Digest[:]...)
	b = binary.LittleEndian.AppendUint64(b, uint64(c.Until))
	b = binary.LittleEndian.AppendUint32(b, uint32(c.Prompt))
	b = binary.LittleEndian.AppendUint32(b, uint32(c.Tokens))
	b = binary.LittleEndian.AppendUint64(b, uint64(body))
	return binary.LittleEndian.AppendUint32(b, crc32c.Of(b))
}

// decodeSaved reads the header of a file with this number of bytes.
func decodeSaved(b []byte, size int64) (c SavedCache, err error) {
	n := savedHeader - sumBytes
	switch {
	case len(b) != savedHeader || !bytes.HasPrefix(b, []byte(savedMagic)):
		return c, fmt.Errorf("%w: it is not a cache of an idle session in the format of this build", ErrDamaged)
	case binary.LittleEndian.Uint32(b[n:]) != crc32c.Of(b[:n]):
		return c, fmt.Errorf("%w: the checksum of the header is wrong", ErrDamaged)
	}
	rest := b[len(savedMagic):]
	for _, to := range [][]byte{c.Form[:], c.Key[:], c.Digest[:]} {
		rest = rest[copy(to, rest):]
	}
	c.Until = int64(binary.LittleEndian.Uint64(rest))
	prompt, tokens := binary.LittleEndian.Uint32(rest[8:]), binary.LittleEndian.Uint32(rest[12:])
	body := int64(binary.LittleEndian.Uint64(rest[16:]))
	if prompt < 1 || tokens < prompt || tokens > 1<<31-1 || c.Until < 0 || body < 0 || size != int64(savedHeader)+body {
		return c, fmt.Errorf("%w: a prompt of %d of %d tokens, %d bytes of pieces in a file of %d", ErrDamaged, prompt, tokens, body, size)
	}
	c.Prompt, c.Tokens = int(prompt), int(tokens)
	return c, nil
}

// readSaved reads the header of a file.
func readSaved(path string) (c SavedCache, size int64, err error) {
	c, f, err := openSavedFile(path)
	if err != nil {
		return c, 0, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return c, 0, err
	}
	return c, st.Size(), nil
}

// openSavedFile opens a file and reads its header.
func openSavedFile(path string) (c SavedCache, f *os.File, err error) {
	if f, err = os.Open(path); err != nil {
		return c, nil, err
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = fmt.Errorf("%w: it is not a regular file", ErrDamaged)
	}
	var head [savedHeader]byte
	if err == nil {
		_, err = readFull(f, head[:])
	}
	if err == nil {
		c, err = decodeSaved(head[:], st.Size())
	}
	if err != nil {
		return c, nil, errors.Join(err, f.Close())
	}
	return c, f, nil
}

// readFull fills b. It returns ErrDamaged if the file ends early.
func readFull(r io.Reader, b []byte) (int, error) {
	n, err := io.ReadFull(r, b)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = fmt.Errorf("%w: it ends early", ErrDamaged)
	}
	return n, err
}
