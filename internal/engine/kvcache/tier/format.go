package tier

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// A file is a header followed by the heads:
//
//	magic [8]  form [32]  key [32]  at, lo, hi, bytes of a head: uint32  sha256 of each head [hi-lo][32]
const (
	magic    = "shoalpx1"
	fixed    = len(magic) + 32 + 32 + 4*4
	maxHeads = 1 << 12
)

// ErrDamaged: a file does not match its name, or its bytes differ from those written.
var ErrDamaged = errors.New("tier: damaged")

// Form identifies the layout of rows in a block, and the bytes of one KV head.
type Form struct {
	Hash      [32]byte // see kvcache.Form
	HeadBytes int
}

// name is the parsed name of a file.
type name struct {
	key   Key
	at    int // number of the block in its text
	heads tensor.Span
}

func (n name) String() string {
	return fmt.Sprintf("%s-%d-%d-%d", hex.EncodeToString(n.key[:]), n.at, n.heads.Lo, n.heads.Hi)
}

// parseName parses the result of String and nothing else.
func parseName(text string) (n name, err error) {
	parts := strings.Split(text, "-")
	if len(parts) != 4 || len(parts[0]) != 2*len(n.key) {
		return n, fmt.Errorf("tier: %q is not the name of a block", text)
	}
	if _, err := hex.Decode(n.key[:], []byte(parts[0])); err != nil {
		return n, err
	}
	var numbers [3]int
	for i, p := range parts[1:] {
		v, err := strconv.ParseUint(p, 10, 31)
		if err != nil {
			return n, err
		}
		numbers[i] = int(v)
	}
	n.at, n.heads = numbers[0], tensor.Span{Lo: numbers[1], Hi: numbers[2]}
	if n.heads.Len() < 1 || n.heads.Len() > maxHeads || n.String() != text {
		return n, fmt.Errorf("tier: %q is not the name of a block", text)
	}
	return n, nil
}

func (n name) header(f Form) []byte {
	h := append([]byte(magic), f.Hash[:]...)
	h = append(h, n.key[:]...)
	for _, v := range []int{n.at, n.heads.Lo, n.heads.Hi, f.HeadBytes} {
		h = binary.LittleEndian.AppendUint32(h, uint32(v))
	}
	return h
}

func (n name) size(f Form) int64 {
	return int64(fixed) + int64(n.heads.Len())*int64(sha256.Size+f.HeadBytes)
}

// Write stores block at of a text, which follows the block of key before. rows holds the heads,
// HeadBytes each. A block that exists is left alone. After an error, which is logged, the block is
// not stored.
func (s *Store) Write(k, before Key, at int, heads tensor.Span, form Form, rows []byte) {
	n := name{k, at, heads}
	if heads.Len() < 1 || heads.Len() > maxHeads || len(rows) != heads.Len()*form.HeadBytes || n.size(form) > s.limit {
		return
	}
	s.disk.Lock()
	defer s.disk.Unlock()
	if !s.Lacks(k, at, heads) {
		return
	}
	if !s.makeRoom(n.size(form)) {
		return
	}
	if err := s.write(n, form, rows); err != nil {
		s.fail("writing", filepath.Join(s.dir, n.String()), err)
		return
	}
	s.mu.Lock()
	s.stats.Written++
	s.add(&file{name: n, dir: s.dir, size: n.size(form)}, before, true)
	s.mu.Unlock()
	now := time.Now()
	_ = os.Chtimes(filepath.Join(s.dir, lockName), now, now) // mark the folder as used, see deserted
}

func (s *Store) write(n name, form Form, rows []byte) (err error) {
	f, err := os.CreateTemp(s.dir, "writing-*") // 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close(), os.Remove(f.Name()))
		}
	}()
	head := n.header(form)
	for i := range n.heads.Len() {
		sum := sha256.Sum256(rows[i*form.HeadBytes : (i+1)*form.HeadBytes])
		head = append(head, sum[:]...)
	}
	if _, err := f.Write(head); err != nil {
		return err
	}
	if _, err := f.Write(rows); err != nil {
		return err
	}
	// No sync: after a power loss the hashes detect missing bytes.
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), filepath.Join(s.dir, n.String()))
}

// Read fills rows with the given heads of a block, from one or more files. It returns false if they
// are missing or damaged; rows are then undefined.
func (s *Store) Read(k Key, at int, heads tensor.Span, form Form, rows []byte) bool {
	s.mu.Lock()
	list := s.covering(k, at, heads)
	s.mu.Unlock()
	if len(list) == 0 || len(rows) != heads.Len()*form.HeadBytes {
		return false
	}
	for next, i := heads.Lo, 0; next < heads.Hi; i++ {
		f := list[i]
		part := tensor.Span{Lo: next, Hi: min(f.name.heads.Hi, heads.Hi)}
		if err := f.read(part, form, rows[(next-heads.Lo)*form.HeadBytes:][:part.Len()*form.HeadBytes]); err != nil {
			s.bad(f, err)
			return false
		}
		next = part.Hi
	}
	now := time.Now()
	for _, f := range list {
		_ = os.Chtimes(f.path(), now, now) // the time of last use, for the next process
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range list {
		s.use(f)
	}
	s.stats.Read++
	return true
}

// bad drops a file that could not be read, and removes it if it is our own: nothing would count it any more.
func (s *Store) bad(f *file, err error) {
	if s.owns(f) {
		s.disk.Lock() // no write may replace it meanwhile
		defer s.disk.Unlock()
	}
	s.mu.Lock()
	own := f.heapIndex != none
	s.forget(f)
	s.mu.Unlock()
	switch {
	case errors.Is(err, os.ErrNotExist): // another process has removed it
		return
	case errors.Is(err, ErrDamaged):
		s.mu.Lock()
		s.stats.Damaged++
		s.mu.Unlock()
		s.warn("a file of the prefix cache is damaged, its block is read again", "file", f.path(), "error", err)
	default:
		s.fail("reading", f.path(), err)
	}
	if own {
		s.discard(f)
	}
}

// owns reports whether a file is listed as one of our own.
func (s *Store) owns(f *file) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return f.heapIndex != none
}

// read fills rows with some of the file's heads.
func (f *file) read(heads tensor.Span, form Form, rows []byte) error {
	r, err := os.Open(f.path())
	if err != nil {
		return err
	}
	defer r.Close()
	st, err := r.Stat()
	if err != nil {
		return err
	}
	if !st.Mode().IsRegular() || st.Size() != f.name.size(form) {
		return fmt.Errorf("%w: %d bytes, not %d", ErrDamaged, st.Size(), f.name.size(form))
	}
	return decode(r, f.name, heads, form, rows)
}

// decode reads some heads of a file of n.size(form) bytes and checks their hashes.
func decode(r io.ReaderAt, n name, heads tensor.Span, form Form, rows []byte) error {
	head := make([]byte, fixed+n.heads.Len()*sha256.Size)
	if _, err := r.ReadAt(head, 0); err != nil {
		return err
	}
	if !bytes.Equal(head[:fixed], n.header(form)) {
		return fmt.Errorf("%w: the header belongs to another file", ErrDamaged)
	}
	first := heads.Lo - n.heads.Lo
	if _, err := r.ReadAt(rows, int64(len(head))+int64(first)*int64(form.HeadBytes)); err != nil {
		return err
	}
	for i := range heads.Len() {
		sum := sha256.Sum256(rows[i*form.HeadBytes : (i+1)*form.HeadBytes])
		if !bytes.Equal(sum[:], head[fixed+(first+i)*sha256.Size:][:sha256.Size]) {
			return fmt.Errorf("%w: the hash of head %d is wrong", ErrDamaged, heads.Lo+i)
		}
	}
	return nil
}
