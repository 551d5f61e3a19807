//go:build !unix

package jobs

import "errors"

// ErrLocked: another process has the data directory.
var ErrLocked = errors.New("jobs: data directory in use")

type lock struct{}

func takeLock(string) (*lock, error) {
	return nil, errors.New("jobs: durable jobs need a Unix system: there is no lease on the data directory here")
}

func (l *lock) release() {}
