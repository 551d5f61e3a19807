package mmap

import (
	"errors"
	"runtime/debug"
)

// ErrFault reports that a mapped byte could not be read: its file was truncated, or its disk failed.
var ErrFault = errors.New("mmap: a mapped file was truncated, or cannot be read")

// Guard calls f and returns ErrFault if f reads a mapped byte that is missing. Without Guard such a
// read ends the process. It covers only the calling goroutine, not those that f starts.
func Guard(f func()) (err error) {
	before := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(before)
		if p := recover(); p != nil {
			if _, ok := p.(interface{ Addr() uintptr }); !ok {
				panic(p)
			}
			err = ErrFault
		}
	}()
	f()
	return nil
}
