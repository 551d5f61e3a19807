// Package sharedmem is memory that the processes of one machine share. It consists of parts, which
// are named by a hash of their contents. The first process that needs a part fills it. A part that
// no process holds is returned to the system. The backing file has no name, so it disappears with
// the last process that has it open. Locks record which process holds or fills a part, and they end
// with the process.
package sharedmem

import (
	"crypto/sha256"
	"errors"
)

// Key is the hash of a part's contents.
type Key = [sha256.Size]byte

var (
	// ErrUnsupported: this system has no such memory, or not in huge pages.
	ErrUnsupported = errors.New("sharedmem: not on this system")
	// ErrFull: there is no room for another part.
	ErrFull = errors.New("sharedmem: full")
	// ErrForeign: the file was not made by Create, or its directory is invalid.
	ErrForeign = errors.New("sharedmem: not a file of parts")
)
