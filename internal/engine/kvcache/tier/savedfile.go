package tier

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/shoal-llm/shoal/internal/sys/crc32c"
)

// within runs a request to the disk for a cache, for at most SavedTimeout. It fails at once while the disk is not used.
// late gets the error of a request that took longer.
func (s *Saved) within(doing, path string, request func() error, late func(error)) error {
	if !s.disk.ok(s.now()) {
		return fmt.Errorf("%w: the disk did not answer a moment ago and is not used", ErrScratch)
	}
	hung, err := s.disk.run(SavedTimeout, request, late)
	if hung {
		s.disk.pause(s.now().Add(savedRest))
		s.fail(doing, path, err)
		return fmt.Errorf("%w: %w: %w", ErrScratch, errHangs, err)
	}
	return err
}

var errHangs = errors.New("the disk hangs")

// SavedWriter writes the cache of an idle session.
type SavedWriter struct {
	s    *Saved
	c    SavedCache
	f    SavedMedium
	left int64
	size int64 // reserved
	over bool
	kept bool // the file is complete, and known
}

// SavedBytes returns the size of a file with pieces of these bytes in all.
func SavedBytes(pieces int, bytes int64) int64 {
	return int64(savedHeader) + bytes + int64(pieces)*sumBytes
}

// Create begins the file of a cache. It has a number of pieces of these bytes in all. The caller ends it
// with Commit or Abort. ErrRoom: there is no room for SavedBytes.
func (s *Saved) Create(c SavedCache, pieces int, bytes int64) (*SavedWriter, error) {
	size := SavedBytes(pieces, bytes)
	switch {
	case s == nil:
		return nil, fmt.Errorf("%w: there is no folder for caches of idle sessions", ErrScratch)
	case s.scratch.Paused() || !s.writes.ok(s.now()):
		return nil, fmt.Errorf("%w: the disk failed a moment ago and is not used", ErrScratch)
	case s.expired(&c):
		return nil, fmt.Errorf("%w: the session is over", ErrScratch)
	}
	w := &SavedWriter{s: s, c: c, left: size - int64(savedHeader)}
	if err := w.within(func() (err error) {
		if !s.scratch.reserve(size, &s.scratch.kept) {
			return fmt.Errorf("%w: %d bytes requested, the limit is %d", ErrRoom, size, s.scratch.limit)
		}
		w.size = size
		if w.f, err = s.create(); err == nil {
			_, err = w.f.Write(encodeSaved(&c, w.left))
		}
		return err
	}); err != nil {
		return nil, err
	}
	return w, nil
}

// Piece appends a piece. After an error the caller aborts, and b may still be read.
func (w *SavedWriter) Piece(b []byte) error {
	if w.left -= int64(len(b)) + sumBytes; w.left < 0 {
		return fmt.Errorf("%w: a piece of %d bytes is too long", ErrScratch, len(b))
	}
	return w.within(func() error {
		_, err := w.f.Write(b)
		if err == nil {
			_, err = w.f.Write(binary.LittleEndian.AppendUint32(nil, crc32c.Of(b)))
		}
		return err
	})
}

// within runs a request to the disk, and aborts after an error. Other files stay in use: a cache of an idle session
// must not delay sequences that run. No cache is written for a while.
func (w *SavedWriter) within(request func() error) error {
	err := w.s.within("writing", w.s.dir, func() error {
		err := request()
		w.s.scratch.yield(err)
		return err
	}, func(error) { w.remove() })
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errHangs):
		w.over = true // it is removed after the request
		return err
	case errors.Is(err, ErrScratch): // nothing was written
		w.Abort()
		return err
	}
	w.Abort()
	w.s.fail("writing", w.s.dir, err)
	w.s.writes.pause(w.s.now().Add(savedRest))
	return fmt.Errorf("%w: %w", ErrScratch, err)
}

// Abort removes the file. It has no effect after its end.
func (w *SavedWriter) Abort() {
	if w.over {
		return
	}
	w.over = true
	if hung, _ := w.s.disk.run(SavedTimeout, func() error { w.remove(); return nil }, func(error) {}); hung {
		w.s.disk.pause(w.s.now().Add(savedRest))
	}
}

// remove removes the file and frees its bytes, unless it is complete.
func (w *SavedWriter) remove() {
	if w.kept {
		return
	}
	if w.f == nil {
		w.s.scratch.kept.Add(-w.size)
		return
	}
	_ = w.f.Close()
	w.s.mu.Lock()
	w.s.removed[w.f.Name()] = w.size
	w.s.mu.Unlock()
	_ = w.s.unlink(w.f.Name())
}

// Commit completes the file, which replaces an earlier one of the session.
func (w *SavedWriter) Commit() error {
	if w.left != 0 {
		w.Abort()
		return fmt.Errorf("%w: %d bytes of a cache are missing", ErrScratch, w.left)
	}
	// No sync: after a power loss the checksums detect missing bytes.
	if err := w.within(func() error {
		path := filepath.Join(w.s.dir, w.c.name())
		err := w.f.Close()
		if err == nil {
			err = os.Rename(w.f.Name(), path)
		}
		if err != nil {
			return err
		}
		w.kept = true
		w.s.mu.Lock()
		w.s.stats.Written++
		many := w.s.order.Len() >= maxSaved
		w.s.mu.Unlock()
		if many {
			w.s.removeOldest()
		}
		w.s.add(&savedFile{w.c, path, w.size})
		return nil
	}); err != nil {
		return err
	}
	w.over = true
	return nil
}

// SavedReader reads the pieces of a cache.
type SavedReader struct {
	s    *Saved
	f    SavedMedium
	path string
	key  Key
	left int64
}

// Open opens the cache of a session. Its header must be c, its pieces and their sums have size bytes. The
// caller closes the reader. Errors wrap ErrDamaged if the file is of no use; it is then removed. They wrap ErrScratch if
// the disk hangs; the file then stays.
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
		return nil, fmt.Errorf("%w: this node has no cache of the session any more", ErrScratch)
	}
	r := &SavedReader{s: s, path: path, key: c.Key, left: SavedBytes(pieces, bytes) - int64(savedHeader)}
	err := s.within("reading", path, func() error {
		have, size, err := r.open()
		c.Until = have.Until
		switch {
		case err != nil:
		case have != c:
			err = fmt.Errorf("%w: it has the cache of another state of the session, or in another form", ErrDamaged)
		case size != SavedBytes(pieces, bytes):
			err = fmt.Errorf("%w: %d bytes, not %d", ErrDamaged, size, SavedBytes(pieces, bytes))
		}
		if err != nil {
			r.Close()
		}
		return err
	}, func(err error) {
		if err == nil {
			r.Close()
		}
	})
	if err != nil {
		return nil, r.bad(err)
	}
	return r, nil
}

// open opens the file and reads its header. After an error the caller closes the reader.
func (r *SavedReader) open() (c SavedCache, size int64, err error) {
	if r.f, err = r.s.open(r.path); err != nil {
		r.f = nil
		return c, 0, err
	}
	st, err := r.f.Stat()
	if err != nil {
		return c, 0, err
	}
	if !st.Mode().IsRegular() {
		return c, 0, fmt.Errorf("%w: it is no regular file", ErrDamaged)
	}
	var head [savedHeader]byte
	if _, err := readFull(r.f, head[:]); err != nil {
		return c, 0, err
	}
	c, err = decodeSaved(head[:], st.Size())
	return c, st.Size(), err
}

// Piece fills b with the next piece, and checks its sum. After an error b may still be written to.
func (r *SavedReader) Piece(b []byte) error {
	err := r.s.within("reading", r.path, func() error {
		var sum [sumBytes]byte
		_, err := readFull(r.f, b)
		if err == nil {
			_, err = readFull(r.f, sum[:])
		}
		if err == nil && binary.LittleEndian.Uint32(sum[:]) != crc32c.Of(b) {
			err = fmt.Errorf("%w: the checksum of a piece of %d bytes is wrong", ErrDamaged, len(b))
		}
		return err
	}, func(error) {})
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

// bad records that a file cannot be read, and removes it, unless the disk hangs.
func (r *SavedReader) bad(err error) error {
	if errors.Is(err, ErrScratch) {
		return err
	}
	r.s.fail("reading", r.path, err)
	r.s.mu.Lock()
	at := r.s.files[r.key]
	if at != nil && at.Value.(*savedFile).path == r.path {
		r.s.drop(at)
	}
	r.s.mu.Unlock()
	_ = r.s.unlink(r.path)
	return err
}

// Close closes the file.
func (r *SavedReader) Close() {
	if r.f != nil {
		_ = r.f.Close()
	}
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
		return c, fmt.Errorf("%w: it is no cache of an idle session in the format of this build", ErrDamaged)
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

// readHeader reads the header of a file.
func (s *Saved) readHeader(path string) (SavedCache, error) {
	r := SavedReader{s: s, path: path}
	defer r.Close()
	c, _, err := r.open()
	return c, err
}

// readFull fills b. A file that ends before is damaged.
func readFull(r io.Reader, b []byte) (int, error) {
	n, err := io.ReadFull(r, b)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = fmt.Errorf("%w: it ends early", ErrDamaged)
	}
	return n, err
}
