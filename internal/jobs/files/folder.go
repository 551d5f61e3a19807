package files

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/shoal-llm/shoal/internal/jobs/journal"
	"github.com/shoal-llm/shoal/internal/sys/wholefile"
)

// File describes an uploaded or generated file. The API returns it as JSON.
type File struct {
	ID        string `json:"id"`
	Object    string `json:"object"`
	Bytes     int64  `json:"bytes"`
	CreatedAt int64  `json:"created_at"`
	Filename  string `json:"filename"`
	Purpose   string `json:"purpose"` // batch, batch_output, context
	Status    string `json:"status"`
	SHA256    string `json:"sha256"`
	Holder    string `json:"holder,omitempty"` // name of the API key that owns the file; "": operators
}

// described returns x with the hash and the size of its content filled in.
func (x File) described(bytes int64, h hash.Hash) File {
	x.Object, x.Status, x.Bytes, x.SHA256 = "file", "processed", bytes, hex.EncodeToString(h.Sum(nil))
	return x
}

// Bytes is the disk limit of all files together.
const Bytes = 4 << 30

// Limits of files.
const (
	maxFileBytes = 200 << 20
	maxFiles     = 4096
)

var (
	// ErrSize: a file exceeds the limit of one file, or the files together exceed the total.
	ErrSize     = errors.New("jobs: file too large")
	ErrNotFound = errors.New("jobs: no such file")
)

// Store keeps the files of batches. All methods may be called concurrently. They return ErrNotFound if
// no file has the id.
type Store interface {
	// Put stores the content of r under x.ID and replaces a file with that id. It reads id, name,
	// purpose, owner and time from x; the rest is computed from the content. After a nil error the
	// file is durable.
	Put(ctx context.Context, x File, r io.Reader) (File, error)
	Get(ctx context.Context, id string) (File, error)
	// List returns all files, newest first.
	List(ctx context.Context) ([]File, error)
	// Open returns the content after verifying it against the hash that was recorded when it was
	// written.
	Open(ctx context.Context, id string) (*os.File, File, error)
	Delete(ctx context.Context, id string) error
}

// Folder stores files in a directory, as ID.data and then ID.json. Each is written under a
// temporary name, synced and renamed, so a file exists completely or not at all.
type Folder struct {
	dir string

	mu      sync.Mutex
	all     map[string]File
	total   int64 // bytes of the stored files
	writing int   // number of files being written
	written int64 // bytes of those so far
	moved   bool  // the files are moved to another store, see Take
}

// OpenFolder creates or reads a folder and removes unfinished files.
func OpenFolder(dir string) (*Folder, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("jobs: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("jobs: %w", err)
	}
	f := &Folder{dir: dir, all: map[string]File{}}
	for _, e := range entries {
		id, meta := strings.CutSuffix(e.Name(), ".json")
		if !meta {
			continue
		}
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		var x File
		if err != nil || json.Unmarshal(b, &x) != nil || x.ID != id {
			return nil, fmt.Errorf("%w: %s does not describe a file; delete it to start without that file",
				journal.ErrDamaged, filepath.Join(dir, e.Name()))
		}
		f.all[id], f.total = x, f.total+x.Bytes
	}
	for _, e := range entries {
		id, data := strings.CutSuffix(e.Name(), ".data")
		if _, there := f.all[id]; strings.HasSuffix(e.Name(), ".tmp") || data && !there {
			_ = os.Remove(filepath.Join(dir, e.Name())) // never acknowledged
		}
	}
	return f, nil
}

func (f *Folder) Put(_ context.Context, x File, r io.Reader) (_ File, err error) {
	c, err := f.claim()
	if err != nil {
		return File{}, err
	}
	defer c.release()
	tmp, err := os.CreateTemp(f.dir, "*.tmp")
	if err != nil {
		return File{}, fmt.Errorf("jobs: %w", err)
	}
	defer func() {
		tmp.Close()
		if err != nil {
			_ = os.Remove(tmp.Name())
		}
	}()
	h := sha256.New()
	n, err := io.Copy(io.MultiWriter(c, tmp, h), io.LimitReader(r, maxFileBytes+1))
	switch {
	case errors.Is(err, ErrSize):
		return File{}, err
	case err != nil:
		return File{}, fmt.Errorf("jobs: %w", err)
	case n > maxFileBytes:
		return File{}, fmt.Errorf("%w: more than %d bytes", ErrSize, maxFileBytes)
	}
	if err = tmp.Sync(); err != nil {
		return File{}, fmt.Errorf("jobs: %w", err)
	}
	x = x.described(n, h)
	meta, err := json.Marshal(x)
	if err != nil {
		return File{}, fmt.Errorf("jobs: %w", err)
	}
	description, err := wholefile.Temp(f.dir, meta) // before the renames: the disk may be full
	if err != nil {
		return File{}, err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(description)
		}
	}()
	if err = f.place(x, tmp.Name(), description); err != nil {
		return File{}, err
	}
	return x, nil
}

// place gives a file and its description their names, and registers them.
func (f *Folder) place(x File, data, description string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.moved {
		return errMoved
	}
	old, replaced := f.all[x.ID]
	err := os.Rename(data, f.path(x.ID, "data"))
	if err == nil {
		if err = os.Rename(description, f.path(x.ID, "json")); err != nil && !replaced {
			err = errors.Join(err, os.Remove(f.path(x.ID, "data")))
		}
	}
	if err != nil {
		return fmt.Errorf("jobs: %w", err)
	}
	f.total += x.Bytes - old.Bytes
	f.all[x.ID] = x
	return wholefile.SyncDir(f.dir)
}

// errMoved means that a file was complete after the others had moved to another store, which serves its clients now.
var errMoved = errors.New("jobs: the files were moved to the replicated store meanwhile; send the file again")

// move makes every later Put fail.
func (f *Folder) move() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.moved = true
}

// claim is the space reserved for a file that is being written. Concurrent uploads share the
// remaining space.
type claim struct {
	files *Folder
	bytes int64
}

func (f *Folder) claim() (*claim, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if count := len(f.all) + f.writing; count >= maxFiles || f.total+f.written >= Bytes {
		return nil, f.full(count)
	}
	f.writing++
	return &claim{files: f}, nil
}

// full returns the error of a full folder. f.mu must be held.
func (f *Folder) full(count int) error {
	return fmt.Errorf("%w: %d of at most %d files use %d of %d bytes; delete some", ErrSize, count, maxFiles, f.total+f.written, int64(Bytes))
}

// Write reserves space for bytes before they are written.
func (c *claim) Write(p []byte) (int, error) {
	f, n := c.files, int64(len(p))
	f.mu.Lock()
	defer f.mu.Unlock()
	if n > Bytes-f.total-f.written {
		return 0, f.full(len(f.all) + f.writing)
	}
	c.bytes, f.written = c.bytes+n, f.written+n
	return len(p), nil
}

func (c *claim) release() {
	c.files.mu.Lock()
	defer c.files.mu.Unlock()
	c.files.writing, c.files.written = c.files.writing-1, c.files.written-c.bytes
}

func (f *Folder) path(id, kind string) string { return filepath.Join(f.dir, id+"."+kind) }

func (f *Folder) Get(_ context.Context, id string) (File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	x, ok := f.all[id]
	if !ok {
		return x, fmt.Errorf("%w: %s", ErrNotFound, id)
	}
	return x, nil
}

func (f *Folder) List(context.Context) ([]File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return newestFirst(slices.Collect(maps.Values(f.all))), nil
}

func newestFirst(files []File) []File {
	slices.SortFunc(files, func(a, b File) int {
		return cmp.Or(cmp.Compare(b.CreatedAt, a.CreatedAt), cmp.Compare(b.ID, a.ID))
	})
	return files
}

// open opens the content of a file that may be replaced or deleted at the same time.
func (f *Folder) open(id string) (*os.File, File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	x, ok := f.all[id]
	if !ok {
		return nil, x, fmt.Errorf("%w: %s", ErrNotFound, id)
	}
	file, err := os.Open(f.path(id, "data"))
	if errors.Is(err, fs.ErrNotExist) { // removed by hand: no later attempt finds it
		return nil, x, fmt.Errorf("%w: file %s: its content is gone", journal.ErrDamaged, id)
	}
	if err != nil {
		return nil, x, fmt.Errorf("jobs: %w", err)
	}
	return file, x, nil
}

func (f *Folder) Open(_ context.Context, id string) (*os.File, File, error) {
	file, x, err := f.open(id)
	if err != nil {
		return nil, x, err
	}
	h := sha256.New()
	n, err := io.Copy(h, file)
	if want, _ := hex.DecodeString(x.SHA256); err == nil && (n != x.Bytes || !bytes.Equal(h.Sum(nil), want)) {
		err = fmt.Errorf("%w: file %s: the %d bytes do not match the SHA-256 of the %d bytes that were written",
			journal.ErrDamaged, id, n, x.Bytes)
	}
	if err == nil {
		_, err = file.Seek(0, io.SeekStart)
	}
	if err != nil {
		file.Close()
		return nil, x, err
	}
	return file, x, nil
}

// Delete implements Store. It removes the description first.
func (f *Folder) Delete(_ context.Context, id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	x, ok := f.all[id]
	if !ok {
		return fmt.Errorf("%w: %s", ErrNotFound, id)
	}
	if err := os.Remove(f.path(id, "json")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("jobs: %w", err)
	}
	delete(f.all, id)
	f.total -= x.Bytes
	if err := os.Remove(f.path(id, "data")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("jobs: %w", err)
	}
	return nil
}
