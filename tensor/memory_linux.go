package tensor

import (
	"fmt"

	"golang.org/x/sys/unix"
)

const hugePage = 2 << 20

// mapping is zeroed memory outside of the Go heap. Huge pages are asked for,
// because reading weights through 4 KiB pages costs a fifth of the bandwidth.
type mapping struct{ all []byte }

// mapMemory returns n zeroed bytes, aligned to a page, and to a huge page where
// n is large enough to have one.
func mapMemory(n int) ([]byte, mapping, error) {
	size := n
	if n >= hugePage {
		size += hugePage
	}
	all, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, mapping{}, fmt.Errorf("tensor: cannot map %d bytes: %w", size, err)
	}
	// Only advice: a kernel without huge pages answers EINVAL and we go on with small ones.
	_ = unix.Madvise(all, unix.MADV_HUGEPAGE)
	off := 0
	if n >= hugePage {
		off = int(-addressOf(all) & (hugePage - 1))
	}
	return all[off : off+n : off+n], mapping{all}, nil
}

func (m mapping) free() error {
	if m.all == nil {
		return nil
	}
	if err := unix.Munmap(m.all); err != nil {
		return fmt.Errorf("tensor: cannot unmap %d bytes: %w", len(m.all), err)
	}
	return nil
}
