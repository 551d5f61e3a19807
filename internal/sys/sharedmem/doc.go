// Package sharedmem is memory that processes of one machine hold once for all of them: parts
// that are named by a hash of what they hold, filled by whoever needs one first, and given back
// to the system when nobody has them any more. Its file has no name: with the last process that
// has it open it is gone, however they ended. What a process holds, and what it fills, it says by
// locks, which end with it too.
package sharedmem

import (
	"crypto/sha256"
	"errors"
)

// Key names what a part holds.
type Key = [sha256.Size]byte

var (
	// ErrUnsupported: this system has no such memory, or none in huge pages.
	ErrUnsupported = errors.New("sharedmem: not on this system")
	// ErrFull: no part more has a place.
	ErrFull = errors.New("sharedmem: full")
	// ErrForeign: the file is none of Create's, or what it says cannot be.
	ErrForeign = errors.New("sharedmem: not a file of parts")
)
