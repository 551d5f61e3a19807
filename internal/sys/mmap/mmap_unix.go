//go:build unix

package mmap

import (
	"os"

	"golang.org/x/sys/unix"
)

// File maps size bytes of f, read only. The caller has checked that f is not shorter. After unmap
// no byte of data may be touched.
func File(f *os.File, size int) (data []byte, unmap func() error, err error) {
	data, err = unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, nil, err
	}
	return data, func() error { return unix.Munmap(data) }, nil
}
