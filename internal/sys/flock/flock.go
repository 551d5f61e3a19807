// Package flock locks files between processes. The kernel releases a lock when its process ends,
// however it ends.
package flock

import (
	"errors"
	"os"
)

// ErrHeld: another process, or another lock of this process, holds the file.
var ErrHeld = errors.New("flock: held by another")

// Kind is the kind of a lock.
type Kind uint8

const (
	Share Kind = iota // shared with other Shares; waits
	Own               // exclusive; does not wait: ErrHeld
)

// Open locks the file at path until it is closed, and creates it if it is missing. With ErrHeld it also
// returns the open file, so that the caller can read the holder's text. The caller closes it.
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
