package lora

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/modelfile"
)

// Store keeps adapters in a folder: each in a folder of its own, named by its ID. Several processes may
// use one folder. A new adapter is written to a temporary folder, verified, and renamed.
type Store struct {
	limit int64 // bytes; beyond it the least recently used are removed
	temp  bool  // Close removes the folder

	dir atomic.Pointer[string] // nil: it is created when the first adapter arrives

	mu        sync.Mutex
	receiving map[ID]string // temporary folders of adapters that arrive in parts
}

const temporary = "new-"

// abandoned is the age from which a temporary folder is assumed to have no writer.
const abandoned = time.Hour

// OpenStore opens or creates a store. limit bounds its size in bytes; 0: no bound. Without a folder the
// store makes a temporary one when it needs it.
func OpenStore(dir string, limit int64) (*Store, error) {
	s := &Store{limit: limit, temp: dir == "", receiving: map[ID]string{}}
	if s.temp {
		return s, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("lora: %w", err)
	}
	s.dir.Store(&dir)
	return s, nil
}

// Close removes a temporary store.
func (s *Store) Close() {
	if dir := s.dir.Load(); s.temp && dir != nil {
		_ = os.RemoveAll(*dir)
	}
}

// folder returns the folder, which it creates for a temporary store. The caller holds mu.
func (s *Store) folder() (string, error) {
	if dir := s.dir.Load(); dir != nil {
		return *dir, nil
	}
	dir, err := os.MkdirTemp("", "shoal-adapters-")
	if err != nil {
		return "", fmt.Errorf("lora: %w", err)
	}
	s.dir.Store(&dir)
	return dir, nil
}

// Path returns the folder of an adapter, whether it exists or not.
func (s *Store) Path(id ID) string {
	if dir := s.dir.Load(); dir != nil {
		return filepath.Join(*dir, id.String())
	}
	return filepath.Join(os.TempDir(), "no-shoal-adapters", id.String())
}

// Has reports whether the store has an adapter. It marks the adapter as used.
func (s *Store) Has(id ID) bool {
	now := time.Now()
	return os.Chtimes(s.Path(id), now, now) == nil
}

// HasFiles reports whether all files of an adapter are there.
func (s *Store) HasFiles(id ID) bool {
	return !slices.ContainsFunc(Files(), func(name string) bool {
		_, err := os.Stat(filepath.Join(s.Path(id), name))
		return err != nil
	})
}

// Files lists the names of an adapter's files in the order in which they are sent.
func Files() []string { return []string{configFile, weightsFile} }

// Receive stores a part of a file of an adapter that arrives in parts, in order. The part at offset 0 of
// the first file starts over.
func (s *Store) Receive(id ID, file string, offset int64, data []byte) error {
	limit := int64(maxConfig)
	switch file {
	case configFile:
	case weightsFile:
		limit = MaxSize
	default:
		return fmt.Errorf("lora: an adapter has no file %.40q", file)
	}
	if offset < 0 || offset > limit-int64(len(data)) {
		return fmt.Errorf("lora: %d bytes of %s at %d: at most %d are possible", len(data), file, offset, limit)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	dir := s.receiving[id]
	if file == configFile && offset == 0 {
		s.drop(id)
		var err error
		if dir, err = s.begin(); err != nil {
			return err
		}
		s.receiving[id] = dir
	}
	if dir == "" {
		return fmt.Errorf("lora: a part of the adapter %v without its beginning", id)
	}
	f, err := os.OpenFile(filepath.Join(dir, file), os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("lora: %w", err)
	}
	st, err := f.Stat()
	if err == nil && st.Size() != offset {
		err = fmt.Errorf("lora: a part of %s at %d, but %d bytes have arrived", file, offset, st.Size())
	}
	if err == nil {
		_, err = f.WriteAt(data, offset)
	}
	return errors.Join(err, f.Close())
}

// drop discards an adapter that is being received. The caller holds mu.
func (s *Store) drop(id ID) {
	if dir := s.receiving[id]; dir != "" {
		_ = os.RemoveAll(dir)
		delete(s.receiving, id)
	}
}

// Complete verifies an adapter whose parts have arrived, and stores it. It returns false if no parts
// have.
func (s *Store) Complete(id ID) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	dir := s.receiving[id]
	if dir == "" {
		return false, nil
	}
	defer s.drop(id)
	return true, s.install(dir, id)
}

// install verifies the adapter in a temporary folder and gives the folder its name.
func (s *Store) install(dir string, id ID) error {
	a, err := Open(dir)
	if err != nil {
		return err
	}
	have := a.ID
	if err := a.Close(); err != nil {
		return err
	}
	if have != id {
		return fmt.Errorf("lora: the files of adapter %v have the ID %v: %w while they were read", id, have, model.ErrChanged)
	}
	return s.name(dir, id)
}

// name gives a temporary folder its name.
func (s *Store) name(dir string, id ID) error {
	if err := os.Rename(dir, s.Path(id)); err != nil && !s.Has(id) { // it is there already, perhaps from another process
		return fmt.Errorf("lora: %w", err)
	}
	return nil
}

// Copy stores the adapter whose files are in a file system, and returns its ID.
func (s *Store) Copy(from fs.FS) (id ID, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	dir, err := s.begin()
	if err != nil {
		return id, err
	}
	defer os.RemoveAll(dir)
	for name, limit := range map[string]int64{configFile: maxConfig, weightsFile: MaxSize} {
		if err := copyFile(filepath.Join(dir, name), from, name, limit); err != nil {
			return id, err
		}
	}
	a, err := Open(dir)
	if err != nil {
		return id, err
	}
	id = a.ID
	if err := a.Close(); err != nil {
		return id, err
	}
	return id, s.name(dir, id)
}

func copyFile(to string, from fs.FS, name string, limit int64) error {
	// The type is checked before the file is opened, because opening a FIFO blocks.
	st, err := fs.Stat(from, name)
	switch {
	case err != nil:
		return fmt.Errorf("lora: %w", err)
	case !st.Mode().IsRegular() || st.Size() > limit:
		return fmt.Errorf("lora: %s is not a file of at most %d bytes: %w", name, limit, modelfile.ErrNotRegular)
	}
	src, err := from.Open(name)
	if err != nil {
		return fmt.Errorf("lora: %w", err)
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("lora: %w", err)
	}
	_, err = io.Copy(dst, io.LimitReader(src, limit))
	if err == nil {
		err = dst.Sync()
	}
	return errors.Join(err, dst.Close())
}

// Remove removes an adapter. Processes that have it open keep its bytes.
func (s *Store) Remove(id ID) error { return discard(s.Path(id)) }

// discard removes the folder of an adapter in one step, so that another process sees all of it or nothing.
func discard(path string) error {
	aside, err := os.MkdirTemp(filepath.Dir(path), temporary)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err = os.Rename(path, filepath.Join(aside, "removed")); errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, os.RemoveAll(aside))
}

// begin removes adapters over the limit and creates a temporary folder for a new one. The caller holds mu.
func (s *Store) begin() (string, error) {
	dir, err := s.folder()
	if err == nil {
		err = s.makeRoom(dir)
	}
	if err != nil {
		return "", err
	}
	if dir, err = os.MkdirTemp(dir, temporary); err != nil {
		return "", fmt.Errorf("lora: %w", err)
	}
	return dir, nil
}

// makeRoom removes abandoned folders, and the least recently used adapters beyond the limit.
func (s *Store) makeRoom(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("lora: %w", err)
	}
	type kept struct {
		path string
		size int64
		used time.Time
	}
	var all []kept
	total := int64(0)
	for _, e := range entries {
		info, err := e.Info()
		path := filepath.Join(dir, e.Name())
		if err != nil || !info.IsDir() {
			continue
		}
		if len(e.Name()) > len(temporary) && e.Name()[:len(temporary)] == temporary {
			if time.Since(info.ModTime()) > abandoned {
				_ = os.RemoveAll(path)
			}
			continue
		}
		k := kept{path, 0, info.ModTime()}
		for _, name := range Files() {
			if st, err := os.Stat(filepath.Join(path, name)); err == nil {
				k.size += st.Size()
			}
		}
		all, total = append(all, k), total+k.size
	}
	slices.SortFunc(all, func(a, b kept) int { return a.used.Compare(b.used) })
	for _, k := range all {
		if s.limit == 0 || total <= s.limit {
			break
		}
		if err := discard(k.path); err != nil {
			return fmt.Errorf("lora: %w", err)
		}
		total -= k.size
	}
	return nil
}
