package tensor

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

const hugePage = 2 << 20

// mapping is zeroed memory outside of the Go heap. It requests huge pages, because reading weights
// through 4 KiB pages costs a fifth of the bandwidth.
type mapping struct {
	all []byte
	of  *slab // the slab that contains all; nil: none
}

// mapMemory returns n zeroed bytes, aligned to a page, or to a huge page if n is at least one.
func mapMemory(n int) ([]byte, mapping, error) {
	size := n
	if n >= hugePage {
		size += hugePage
	}
	all, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, mapping{}, fmt.Errorf("tensor: cannot map %d bytes: %w", size, err)
	}
	// Only advice: a kernel without huge pages returns EINVAL, and small ones are used.
	_ = unix.Madvise(all, unix.MADV_HUGEPAGE)
	off := 0
	if n >= hugePage {
		off = int(-addressOf(all) & (hugePage - 1))
	}
	return all[off : off+n : off+n], mapping{all: all}, nil
}

// slab is a range of huge pages that matrices share. A matrix of a megabyte has no huge page of its
// own and was read at half the speed (Zen 4).
type slab struct {
	data []byte // not allocated yet
	mem  mapping
	live int // number of matrices in use
}

const slabBytes = 32 << 20

// slabs guards every slab. open is the slab from which matrices are allocated.
var slabs struct {
	sync.Mutex
	open *slab
}

// mapMatrix is mapMemory for a matrix, aligned to a cache line: a large one has its own mapping,
// others share a slab.
func mapMatrix(n int) ([]byte, mapping, error) {
	if n >= slabBytes/4 {
		return mapMemory(n)
	}
	slabs.Lock()
	defer slabs.Unlock()
	size := (n + 63) &^ 63
	s := slabs.open
	if s == nil || size > len(s.data) {
		data, mem, err := mapMemory(slabBytes)
		if err != nil {
			return nil, mapping{}, err
		}
		s = &slab{data: data, mem: mem}
		slabs.open = s
	}
	part := s.data[:n:n]
	s.data = s.data[size:]
	s.live++
	return part, mapping{part, s}, nil
}

// leave frees a part of the slab: its whole pages return to the system, and with the last part the
// slab does.
func (s *slab) leave(part []byte) error {
	slabs.Lock()
	defer slabs.Unlock()
	if s.live--; s.live == 0 {
		if slabs.open == s {
			slabs.open = nil
		}
		return s.mem.free()
	}
	const page = 4 << 10
	lo := int(-addressOf(part) & (page - 1))
	if hi := lo + (len(part)-lo)/page*page; hi > lo {
		if err := unix.Madvise(part[lo:hi], unix.MADV_DONTNEED); err != nil {
			return fmt.Errorf("tensor: cannot give back %d bytes: %w", hi-lo, err)
		}
	}
	return nil
}

func (m mapping) free() error {
	if m.of != nil {
		return m.of.leave(m.all)
	}
	if m.all == nil {
		return nil
	}
	if err := unix.Munmap(m.all); err != nil {
		return fmt.Errorf("tensor: cannot unmap %d bytes: %w", len(m.all), err)
	}
	return nil
}
