//go:build !unix

package mmap

import (
	"io"
	"os"
)

// File reads the file on systems without mmap. The caller has checked that it has size bytes.
func File(f *os.File, size int) (data []byte, unmap func() error, err error) {
	data = make([]byte, size)
	if _, err := io.ReadFull(io.NewSectionReader(f, 0, int64(size)), data); err != nil {
		return nil, nil, err
	}
	return data, func() error { return nil }, nil
}
