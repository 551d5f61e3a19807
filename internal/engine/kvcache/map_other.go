//go:build unix && !linux

package kvcache

import "golang.org/x/sys/unix"

func mapMemory(bytes int) ([]byte, error) {
	return unix.Mmap(-1, 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
}

func unmap(mem []byte) error { return unix.Munmap(mem) }
