//go:build unix

package jobs

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrLocked: another process has the data directory.
var ErrLocked = errors.New("jobs: data directory in use")

// lock is the lease on a data directory: the kernel ends it with the process,
// however that died.
type lock struct{ f *os.File }

func takeLock(dir string) (*lock, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("jobs: data directory %s: %w", dir, err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		who, _ := io.ReadAll(io.LimitReader(f, 64))
		f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("jobs: lock %s: %w", dir, err)
		}
		return nil, fmt.Errorf("%w: %s belongs to a running coordinator (process %s); stop it, or give another --data-dir", ErrLocked, dir, strings.TrimSpace(string(who)))
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
