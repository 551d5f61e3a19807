//go:build !unix

package hugemem

// Map allocates on Go's heap on systems without mmap. The next garbage collection frees the memory. The
// extra bytes are for kernels, whose pointer may end after the last row: no other object may be there.
func Map(bytes int) ([]byte, error) { return make([]byte, bytes+4<<10)[:bytes:bytes], nil }

// Unmap does nothing.
func Unmap([]byte) error { return nil }

func discard([]byte) error { return nil }
