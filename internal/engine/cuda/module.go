package cuda

import (
	"fmt"
	"math"
	"strings"
	"sync"
	"unsafe"

	"github.com/shoal-llm/shoal/internal/native"
)

// A Module is kernels that the driver has compiled for the card.
type Module struct {
	c      *Context
	handle uintptr
	// Arguments of a launch: values, then pointers to them. The driver copies them in Launch.
	mu   sync.Mutex // guards args
	args *Pinned
}

// maxParameters bounds the parameters of a kernel.
const maxParameters = 32

// Load compiles PTX text. It takes 0.5 s the first time; the driver keeps the result in
// CUDA_CACHE_PATH, by default in ~/.nv/ComputeCache.
func (c *Context) Load(ptx []byte) (*Module, error) {
	m := &Module{c: c}
	text := append(ptx[:len(ptx):len(ptx)], 0)
	const errorLog, errorLogBytes = 5, 6
	options := [2]int32{errorLog, errorLogBytes}
	values, err := c.Pin(16)
	if err != nil {
		return nil, err
	}
	defer values.Close()
	log, err := c.Pin(8 << 10)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	clear(log.Bytes())
	words := unsafe.Slice((*uint64)(unsafe.Pointer(&values.Bytes()[0])), 2)
	words[0], words[1] = uint64(log.p), uint64(log.bytes)
	err = c.driver.call(fnModuleLoadDataEx, uintptr(unsafe.Pointer(&m.handle)), uintptr(unsafe.Pointer(&text[0])), 2,
		uintptr(unsafe.Pointer(&options[0])), values.p)
	if err != nil {
		return nil, fmt.Errorf("%w %s", err, strings.TrimSpace(native.String(log.p)))
	}
	if m.args, err = c.Pin(2 * 8 * maxParameters); err != nil {
		return nil, err
	}
	return m, nil
}

// Close unloads the kernels. None may be in flight.
func (m *Module) Close() error {
	if err := m.args.Close(); err != nil {
		return err
	}
	return m.c.driver.call(fnModuleUnload, m.handle)
}

// A Kernel is a function that runs on the card.
type Kernel struct {
	m      *Module
	name   string
	handle uintptr
}

// Kernel finds a kernel by name.
func (m *Module) Kernel(name string) (*Kernel, error) {
	text := append([]byte(name), 0)
	k := &Kernel{m: m, name: name}
	if err := m.c.driver.call(fnModuleGetFunction, uintptr(unsafe.Pointer(&k.handle)), m.handle,
		uintptr(unsafe.Pointer(&text[0]))); err != nil {
		return nil, fmt.Errorf("kernel %s: %w", name, err)
	}
	return k, nil
}

// Attributes of kernels (CUfunction_attribute).
const (
	funcSharedBytes      = 1 // static
	funcMaxDynamicShared = 8
	funcSharedPart       = 9 // percent of a multiprocessor's first-level cache that should be shared memory
)

// AllowShared lets launches ask for up to n bytes of dynamic shared memory; without it, 48 KB. It reports false if a
// multiprocessor of the card cannot hold that many blocks of the kernel at once.
func (k *Kernel) AllowShared(n, blocks int) (bool, error) {
	d, dev := k.m.c.driver, k.m.c.Device
	var static int32
	if err := d.call(fnFuncGetAttribute, uintptr(unsafe.Pointer(&static)), funcSharedBytes, k.handle); err != nil {
		return false, err
	}
	if bytes := int(static) + n; bytes > dev.SharedMemory || blocks*(bytes+dev.sharedReserved) > dev.sharedPerMulti {
		return false, nil
	}
	if err := d.call(fnFuncSetAttribute, k.handle, funcMaxDynamicShared, uintptr(n)); err != nil {
		return false, err
	}
	return true, d.call(fnFuncSetAttribute, k.handle, funcSharedPart, 100)
}

// Grid is the shape of a launch.
type Grid struct {
	X, Y    int // blocks
	Threads int // of a block
	Shared  int // bytes of dynamic shared memory of a block
}

// Launch puts a kernel into a stream. Arguments are Pointer, uint32, uint64 and float32, in the
// order and of the widths of the kernel's parameters. It takes 4 to 6 µs. It may be
// called concurrently.
func (k *Kernel) Launch(s *Stream, g Grid, args ...any) error {
	if len(args) > maxParameters {
		return fmt.Errorf("cuda: %s: %d arguments", k.name, len(args))
	}
	k.m.mu.Lock()
	defer k.m.mu.Unlock()
	memory := k.m.args
	words := unsafe.Slice((*uint64)(unsafe.Pointer(&memory.Bytes()[0])), 2*maxParameters)
	for i, a := range args {
		switch a := a.(type) {
		case Pointer:
			words[i] = uint64(a)
		case uint32:
			words[i] = uint64(a)
		case uint64:
			words[i] = a
		case float32:
			words[i] = uint64(math.Float32bits(a))
		default:
			return fmt.Errorf("cuda: %s: argument %d is a %T", k.name, i, a)
		}
		words[maxParameters+i] = uint64(memory.p) + uint64(8*i)
	}
	err := k.m.c.driver.call(fnLaunchKernel, k.handle, uintptr(g.X), uintptr(max(g.Y, 1)), 1, uintptr(g.Threads), 1, 1, uintptr(g.Shared),
		s.handle, memory.p+8*maxParameters, 0)
	if err != nil {
		return fmt.Errorf("kernel %s: %w", k.name, err)
	}
	return nil
}
