//go:build unix && !linux

package hugemem

import "golang.org/x/sys/unix"

// Map maps zeroed memory.
func Map(bytes int) ([]byte, error) {
	return unix.Mmap(-1, 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
}

// Unmap returns memory of Map to the system.
func Unmap(mem []byte) error { return unix.Munmap(mem) }

func discard([]byte) error { return nil }
