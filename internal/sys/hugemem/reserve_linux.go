package hugemem

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Reserve reserves address space that faults when it is touched, for handles of memory elsewhere. Unmap
// frees it.
func Reserve(bytes int) ([]byte, error) {
	p, err := unix.MmapPtr(-1, 0, nil, uintptr(bytes), unix.PROT_NONE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_NORESERVE)
	if err != nil {
		return nil, err
	}
	return unsafe.Slice((*byte)(p), bytes), nil
}

// Offset returns the distance of a handle from the start of reserved space.
func Offset(space, handle []byte) int64 {
	return int64(uintptr(unsafe.Pointer(unsafe.SliceData(handle))) - uintptr(unsafe.Pointer(unsafe.SliceData(space))))
}
