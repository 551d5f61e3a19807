//go:build !linux

package hugemem

import "errors"

// Reserve reserves address space for handles of memory elsewhere.
func Reserve(int) ([]byte, error) { return nil, errors.New("hugemem: no handles on this system") }

// Offset returns the distance of a handle from the start of reserved space.
func Offset(_, _ []byte) int64 { return 0 }
