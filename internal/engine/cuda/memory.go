package cuda

import (
	"fmt"
	"unsafe"
)

// Pointer is an address in the memory of a card. Go code cannot read it.
type Pointer uint64

// Add returns the address n bytes further.
func (p Pointer) Add(n int64) Pointer { return p + Pointer(n) }

// Alloc allocates n bytes on the card, aligned to 256. Their content is undefined. Where memory
// is short, the error is an [Error] with CodeOutOfMemory.
func (c *Context) Alloc(n int64) (Pointer, error) {
	if n <= 0 {
		return 0, fmt.Errorf("cuda: an allocation of %d bytes", n)
	}
	var p uintptr
	if err := c.driver.call(fnMemAlloc, uintptr(unsafe.Pointer(&p)), uintptr(n)); err != nil {
		return 0, err
	}
	return Pointer(p), nil
}

// Free frees memory of Alloc. No work that uses it may be in flight.
func (c *Context) Free(p Pointer) error { return c.driver.call(fnMemFree, uintptr(p)) }

// Pinned is host memory that cannot be paged out. The card reads and writes it at its own address,
// and copies to and from it run at the speed of the bus. It lies outside the Go heap.
type Pinned struct {
	c     *Context
	p     uintptr
	bytes int
}

// Pin allocates n bytes of pinned memory. Their content is undefined.
func (c *Context) Pin(n int) (*Pinned, error) {
	if n <= 0 {
		return nil, fmt.Errorf("cuda: an allocation of %d bytes", n)
	}
	const portable, mapped = 1, 2
	m := &Pinned{c: c, bytes: n}
	if err := c.driver.call(fnMemHostAlloc, uintptr(unsafe.Pointer(&m.p)), uintptr(n), portable|mapped); err != nil {
		return nil, err
	}
	return m, nil
}

// Bytes returns the memory. It is invalid after Close.
func (m *Pinned) Bytes() []byte { return unsafe.Slice(*(**byte)(unsafe.Pointer(&m.p)), m.bytes) }

// Floats views little-endian bytes of pinned memory as numbers. Their address is a multiple of 4.
func Floats(b []byte) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}

// Device returns the address for kernels.
func (m *Pinned) Device() Pointer { return Pointer(m.p) }

// Close frees the memory. No work that uses it may be in flight.
func (m *Pinned) Close() error { return m.c.driver.call(fnMemFreeHost, m.p) }

// Register pins memory that another allocator owns, outside the Go heap, such as a mapped file or
// memory that processes share. It is page-aligned.
func (c *Context) Register(b []byte) error {
	return c.driver.call(fnMemHostRegister, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), 1)
}

// Unregister ends Register. It must come before the memory is unmapped.
func (c *Context) Unregister(b []byte) error {
	return c.driver.call(fnMemHostUnregister, uintptr(unsafe.Pointer(unsafe.SliceData(b))))
}
