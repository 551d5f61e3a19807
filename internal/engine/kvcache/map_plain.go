//go:build !unix

package kvcache

// mapMemory allocates on Go's heap on systems without mmap; freed memory returns with the next
// collection. The extra bytes matter because a kernel's pointer may end after the last row, where
// no other object may be.
func mapMemory(bytes int) ([]byte, error) { return make([]byte, bytes+4<<10)[:bytes:bytes], nil }

func unmap([]byte) error { return nil }
