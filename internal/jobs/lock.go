package jobs

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/shoal-llm/shoal/internal/options"
	"github.com/shoal-llm/shoal/internal/sys/flock"
)

// ErrLocked: another process uses the data directory.
var ErrLocked = errors.New("jobs: data directory in use")

// lock is the lease on a data directory.
type lock struct{ f *os.File }

func takeLock(dir string) (*lock, error) {
	f, err := flock.Open(filepath.Join(dir, "lock"), flock.Own)
	if errors.Is(err, flock.ErrHeld) {
		owner, _ := io.ReadAll(io.LimitReader(f, 64))
		f.Close()
		return nil, fmt.Errorf("%w: %s is used by a running coordinator (process %s); stop it or choose another "+options.Name("data-dir"),
			ErrLocked, dir, strings.TrimSpace(string(owner)))
	}
	if err != nil {
		return nil, fmt.Errorf("jobs: data directory %s: %w", dir, err)
	}
	err = f.Truncate(0)
	if err == nil {
		_, err = f.WriteAt([]byte(fmt.Sprintf("%d\n", os.Getpid())), 0)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("jobs: data directory %s: %w", dir, err)
	}
	return &lock{f}, nil
}

func (l *lock) release() { l.f.Close() }
