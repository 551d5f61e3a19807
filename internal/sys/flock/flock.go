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

// tries is how often Open opens a file that others remove before the lock.
const tries = 100

// Open locks the file at path until it is closed, and creates it if it is missing. The lock is of the file that has
// the name: a lock of a file that another process has removed in between would exclude nobody, so Open then opens the
// new one. With ErrHeld it also returns the open file, so that the caller can read the holder's text. The caller
// closes it.
func Open(path string, k Kind) (f *os.File, err error) {
	for range tries {
		if f, err = open(path, k); err != nil {
			return f, err
		}
		if named(f, path) {
			return f, nil
		}
		f.Close()
	}
	return f, ErrHeld
}

func open(path string, k Kind) (*os.File, error) {
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

// named reports whether path is the name of an open file.
func named(f *os.File, path string) bool {
	is, err := f.Stat()
	if err != nil {
		return false
	}
	at, err := os.Stat(path)
	return err == nil && os.SameFile(is, at)
}
