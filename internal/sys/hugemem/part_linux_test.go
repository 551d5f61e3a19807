package hugemem

import (
	"errors"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Matrices share slabs: they do not overlap, each starts as zeros, and the last one to be freed
// frees the slab.
func TestMatricesShareSlabs(t *testing.T) {
	slabs.Lock()
	slabs.open = nil // left by other tests
	slabs.Unlock()
	const each, n = 1<<20 + 192, 80 // three slabs
	all := make([]Part, n)
	for i := range all {
		part, err := MapPart(each)
		data := part.Data
		if err != nil {
			t.Fatal(err)
		}
		if len(data) != each || uintptr(unsafe.Pointer(&data[0]))%64 != 0 {
			t.Fatalf("matrix %d has %d bytes at %p", i, len(data), &data[0])
		}
		for j, b := range data {
			if b != 0 {
				t.Fatalf("matrix %d begins with %d at %d", i, b, j)
			}
		}
		for j := range data {
			data[j] = byte(i + 1)
		}
		all[i] = part
	}
	for i := 1; i < n; i += 2 {
		if err := all[i].Free(); err != nil {
			t.Fatal(err)
		}
	}
	if b := all[1].Data[8<<10]; b != 0 {
		t.Errorf("the pages of a freed matrix are kept: %d", b)
	}
	slabOf := map[*slab]bool{}
	for i := 0; i < n; i += 2 {
		for j, b := range all[i].Data {
			if b != byte(i+1) {
				t.Fatalf("matrix %d has %d at %d", i, b, j)
			}
		}
		slabOf[all[i].of] = true
		if err := all[i].Free(); err != nil {
			t.Fatal(err)
		}
	}
	if len(slabOf) < 3 {
		t.Errorf("%d matrices of %d bytes lay in %d slabs", n, each, len(slabOf))
	}
	for s := range slabOf {
		if err := unix.Madvise(s.all, unix.MADV_NORMAL); !errors.Is(err, unix.ENOMEM) {
			t.Errorf("a slab with %d matrices is still mapped: %v", s.live, err)
		}
	}
	if p, err := MapPart(slabBytes); err != nil || p.of != nil || len(p.Data) != slabBytes || p.Free() != nil {
		t.Errorf("a large matrix is not its own mapping: %v", err)
	}
}
