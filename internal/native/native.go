// Package native calls C libraries from a program without cgo.
//
// The program stays statically linked, and runs on systems without glibc. On the first Open, it
// starts the dynamic loader of glibc within the process, on a thread of its own ("C thread"), as
// the kernel would start it for a program that needs libc. All C functions run on that thread,
// one at a time. A call costs about 0.7 µs.
//
// If glibc is damaged, its loader ends the whole process. Callers on an unknown machine therefore try
// Open in a child process first.
//
// With the build tag purego, the package is a thin layer over github.com/ebitengine/purego
// instead, and the program is linked dynamically. The tests of both are the same, so that one
// checks the other.
package native

import (
	"errors"
	"fmt"
	"strings"
	"unsafe"
)

// ErrUnavailable is the cause when this process cannot call C at all: there is no glibc, or no
// support for this operating system and processor.
var ErrUnavailable = errors.New("native: C libraries cannot be loaded here")

// maxArgs is the largest number of arguments of a C function.
const maxArgs = 16

// A Library is a shared library that the process has loaded. It is never unloaded.
type Library struct {
	name   string
	handle uintptr
}

// A Func is the address of a C function.
type Func uintptr

// Check returns an error that wraps ErrUnavailable if this build cannot load C libraries on any
// machine. It loads none.
func Check() error { return linked() }

// Open loads a shared library by its name, such as "libcuda.so.1", or by its path. The loader
// searches as it does for C programs: LD_LIBRARY_PATH, then the folders of ldconfig.
//
// The error wraps ErrUnavailable, or holds the loader's text, which names the missing file.
func Open(name string) (*Library, error) {
	if name == "" || strings.ContainsRune(name, 0) {
		return nil, fmt.Errorf("native: %q is not the name of a library", name)
	}
	handle, err := open(name)
	if err != nil {
		return nil, err
	}
	return &Library{name: name, handle: handle}, nil
}

// Func finds a function of the library.
func (l *Library) Func(name string) (Func, error) {
	if name == "" || strings.ContainsRune(name, 0) {
		return 0, fmt.Errorf("native: %q is not the name of a function", name)
	}
	if f := symbol(l.handle, name); f != 0 {
		return f, nil
	}
	return 0, fmt.Errorf("native: %s has no function %s", l.name, name)
}

// Call calls the function with integers and pointers, at most 16, and returns its integer or
// pointer. A pointer converted to uintptr in the argument list stays valid until Call returns; C
// must not keep it longer. Memory that a device or a later call reads must lie outside the Go heap.
//
// Goroutines may call concurrently. A call waits until the earlier ones have returned.
//
//go:uintptrescapes
func (f Func) Call(args ...uintptr) uintptr {
	if f == 0 || len(args) > maxArgs {
		panic(fmt.Sprintf("native: call of address %#x with %d arguments", uintptr(f), len(args)))
	}
	return call(f, args)
}

// Pending returns the C function that is being executed, and the number of its call; ok is false if there is none.
// A number that stays the same is one call. With the build tag purego, ok is always false.
func (l *Library) Pending() (f Func, call uint32, ok bool) { return pending() }

// maxString bounds the strings that C returns.
const maxString = 1 << 16

// String copies a string of C, which ends with a zero byte. A null pointer is the empty string.
func String(p uintptr) string {
	if p == 0 {
		return ""
	}
	n := 0
	for n < maxString && *at[byte](p + uintptr(n)) != 0 {
		n++
	}
	return string(unsafe.Slice(at[byte](p), n))
}

// at returns a pointer to memory that Go does not manage.
func at[T any](p uintptr) *T { return *(**T)(unsafe.Pointer(&p)) }
