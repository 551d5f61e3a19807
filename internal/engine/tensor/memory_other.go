//go:build !linux

package tensor

type mapping struct{}

// behindLast exceeds a kernel's pointer advance. The pointer ends beyond the last panel, where Go's
// heap must not have another object or unallocated memory.
const behindLast = 4 << 10

// mapMemory returns n zeroed bytes, aligned to a cache line.
func mapMemory(n int) ([]byte, mapping, error) {
	all := make([]byte, n+64+behindLast)
	off := int(-addressOf(all) & 63)
	return all[off : off+n : off+n], mapping{}, nil
}

// mapMatrix is mapMemory: the Go heap shares pages already.
func mapMatrix(n int) ([]byte, mapping, error) { return mapMemory(n) }

func (m mapping) free() error { return nil }
