package hugemem

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

const hugePage = 2 << 20

// Map maps zeroed memory. Large mappings have huge pages, because readers read them from end to end.
func Map(bytes int) ([]byte, error) {
	slack, page := 0, os.Getpagesize()
	if bytes >= hugePage {
		slack = hugePage
	}
	pages := (bytes + page - 1) &^ (page - 1)
	all, err := unix.MmapPtr(-1, 0, nil, uintptr(pages+slack), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, err
	}
	if slack == 0 {
		return unsafe.Slice((*byte)(all), bytes), nil
	}
	// Unmap the parts before and after the aligned part.
	before := int(-uintptr(all) & (hugePage - 1))
	mem := unsafe.Slice((*byte)(unsafe.Add(all, before)), bytes)
	if before > 0 {
		err = unix.MunmapPtr(all, uintptr(before))
	}
	if behind := slack - before; behind > 0 && err == nil {
		err = unix.MunmapPtr(unsafe.Add(all, before+pages), uintptr(behind))
	}
	_ = unix.Madvise(mem, unix.MADV_HUGEPAGE) // advice only: a kernel without huge pages returns EINVAL
	return mem, err
}

// Unmap returns memory of Map to the system.
func Unmap(mem []byte) error {
	return unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(mem)), uintptr(len(mem)))
}

// discard returns whole pages to the system; they read as zeros again.
func discard(pages []byte) error { return unix.Madvise(pages, unix.MADV_DONTNEED) }
