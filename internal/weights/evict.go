package weights

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/shoal-llm/shoal/internal/sys/flock"
)

// lockSuffix names the lock file of a cache folder. A folder is not evicted while its lock is held.
// The file is outside the folder, so that it survives the folder's removal.
const lockSuffix = ".lock"

// claim locks a folder for this process until the returned file is closed.
func claim(dir string) (*os.File, error) {
	f, err := flock.Open(dir+lockSuffix, flock.Share)
	if err != nil {
		return nil, fmt.Errorf("weights: %w", err)
	}
	now := time.Now()
	if err := os.Chtimes(f.Name(), now, now); err != nil { // records the last use
		f.Close()
		return nil, fmt.Errorf("weights: %w", err)
	}
	return f, nil
}

// evict removes cache folders that no process uses, least recently used first, until the rest plus
// want bytes fit limit. It never removes keep, the folder that is about to grow.
func evict(folder, keep string, want, limit int64, log *slog.Logger) error {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return fmt.Errorf("weights: %w", err)
	}
	type old struct {
		name  string
		bytes int64
		used  time.Time // zero: never recorded
	}
	var all []old
	sum := want
	for _, e := range entries {
		if !e.IsDir() || e.Name() == keep {
			continue
		}
		x := old{name: e.Name()}
		if x.bytes, err = diskBytes(filepath.Join(folder, x.name)); err != nil {
			return err
		}
		if st, err := os.Stat(filepath.Join(folder, x.name+lockSuffix)); err == nil {
			x.used = st.ModTime()
		}
		all = append(all, x)
		sum += x.bytes
	}
	slices.SortFunc(all, func(a, b old) int { return cmp.Or(a.used.Compare(b.used), strings.Compare(a.name, b.name)) })
	for _, x := range all {
		if sum <= limit {
			return nil
		}
		dir := filepath.Join(folder, x.name)
		lock, err := flock.Open(dir+lockSuffix, flock.Own)
		if errors.Is(err, flock.ErrHeld) {
			lock.Close()
			continue // in use
		}
		if err != nil {
			return fmt.Errorf("weights: %w", err)
		}
		err = os.RemoveAll(dir)
		lock.Close()
		if err != nil {
			return fmt.Errorf("weights: %w", err)
		}
		log.Info("removed cached weights", "folder", dir, "bytes", x.bytes, "limit", limit)
		sum -= x.bytes
	}
	return nil
}

// diskBytes returns the disk usage of a folder, which another process may be removing.
func diskBytes(dir string) (sum int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || e.IsDir() {
			return err
		}
		st, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		sum += onDisk(st)
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("weights: %w", err)
	}
	return sum, nil
}
