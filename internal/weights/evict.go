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

// lockSuffix is a claim on a folder of fetched weights: nobody removes it while one
// is held. It is a file beside the folder, so that it outlives what it guards.
const lockSuffix = ".lock"

// claim says that this process uses a folder, from now until the file is
// closed.
func claim(dir string) (*os.File, error) {
	f, err := flock.Open(dir+lockSuffix, flock.Share)
	if err != nil {
		return nil, fmt.Errorf("weights: %w", err)
	}
	now := time.Now()
	if err := os.Chtimes(f.Name(), now, now); err != nil { // when it was last used
		f.Close()
		return nil, fmt.Errorf("weights: %w", err)
	}
	return f, nil
}

// evict removes folders of fetched weights that no process uses, those
// that were not used for longest first, until they and want bytes more fit limit.
// keep is the one that is about to grow.
func evict(folder, keep string, want, limit int64, log *slog.Logger) error {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return fmt.Errorf("weights: %w", err)
	}
	type old struct {
		name  string
		bytes int64
		used  time.Time // zero: nobody ever said so
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
			continue // somebody uses it
		}
		if err != nil {
			return fmt.Errorf("weights: %w", err)
		}
		err = os.RemoveAll(dir)
		lock.Close()
		if err != nil {
			return fmt.Errorf("weights: %w", err)
		}
		log.Info("weights from the bus were removed", "folder", dir, "bytes", x.bytes, "limit", limit)
		sum -= x.bytes
	}
	return nil
}

// diskBytes is what a folder takes on the disk.
func diskBytes(dir string) (sum int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		st, err := e.Info()
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
