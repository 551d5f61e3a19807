package hugemem

import (
	"fmt"
	"sync"
	"unsafe"
)

// Part is memory that may share a mapping with others. The zero value has none.
type Part struct {
	Data []byte
	of   *slab // the slab that contains Data; nil: it is a mapping of its own
}

// slab is a range of huge pages that parts share. Without it a matrix of a megabyte has only small pages,
// and reads are half as fast (Zen 4).
type slab struct {
	all  []byte
	data []byte // not allocated yet
	live int    // number of parts in use
}

const slabBytes = 32 << 20

// slabs guards every slab. open is the slab from which parts are allocated.
var slabs struct {
	sync.Mutex
	open *slab
}

// MapPart maps n zeroed bytes, aligned to a cache line. A large part has its own mapping; others share one.
func MapPart(n int) (Part, error) {
	if n >= slabBytes/4 {
		data, err := Map(n)
		return Part{Data: data}, failed("map", n, err)
	}
	slabs.Lock()
	defer slabs.Unlock()
	size := (n + 63) &^ 63
	s := slabs.open
	if s == nil || size > len(s.data) {
		data, err := Map(slabBytes)
		if err != nil {
			return Part{}, failed("map", slabBytes, err)
		}
		s = &slab{all: data, data: data}
		slabs.open = s
	}
	part := s.data[:n:n]
	s.data = s.data[size:]
	s.live++
	return Part{part, s}, nil
}

// Free frees the memory. Whole pages of a slab return to the system at once. The slab is unmapped with its
// last part.
func (p Part) Free() error {
	switch {
	case p.Data == nil:
		return nil
	case p.of == nil:
		return failed("unmap", len(p.Data), Unmap(p.Data))
	}
	slabs.Lock()
	defer slabs.Unlock()
	s := p.of
	if s.live--; s.live == 0 {
		if slabs.open == s {
			slabs.open = nil
		}
		return failed("unmap", len(s.all), Unmap(s.all))
	}
	const page = 4 << 10
	lo := int(-uintptr(unsafe.Pointer(unsafe.SliceData(p.Data))) & (page - 1))
	if hi := lo + (len(p.Data)-lo)/page*page; hi > lo {
		return failed("give back", hi-lo, discard(p.Data[lo:hi]))
	}
	return nil
}

func failed(what string, bytes int, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("hugemem: cannot %s %d bytes: %w", what, bytes, err)
}
