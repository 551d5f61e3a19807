// Package flock locks files between processes. The kernel ends a lock with the
// process that holds it, however that dies.
package flock

import (
	"errors"
	"os"
)

// ErrHeld: another process, or another lock of this one, is in the way.
var ErrHeld = errors.New("flock: held by another")

// Kind is what a lock lets others do, and whether it waits for them.
type Kind uint8

const (
	Share Kind = iota // with other Shares; waits
	Own               // alone; waits for nobody: ErrHeld
)

// Open locks the file at path, which it makes when it is not there, until the file is
// closed. With ErrHeld the file is open too, for what its holder wrote; close it.
func Open(path string, k Kind) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := lock(f, k); err != nil {
		if errors.Is(err, ErrHeld) {
			return f, err
		}
		f.Close()
		return nil, &os.PathError{Op: "lock", Path: path, Err: err}
	}
	return f, nil
}
