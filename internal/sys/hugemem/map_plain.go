//go:build !unix

package hugemem

// Map allocates on Go's heap on systems without mmap; freed memory returns with the next
// collection. The extra bytes matter because a kernel's pointer may end after the last row, where
// no other object may be.
func Map(bytes int) ([]byte, error) { return make([]byte, bytes+4<<10)[:bytes:bytes], nil }

// Unmap does nothing.
func Unmap([]byte) error { return nil }

func discard([]byte) error { return nil }
