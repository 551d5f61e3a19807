//go:build purego && linux

package native

import (
	"fmt"

	"github.com/ebitengine/purego"
)

func linked() error { return nil }

func open(name string) (uintptr, error) {
	handle, err := purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		return 0, fmt.Errorf("native: %w", err)
	}
	return handle, nil
}

func symbol(handle uintptr, name string) Func {
	p, err := purego.Dlsym(handle, name)
	if err != nil {
		return 0
	}
	return Func(p)
}

func call(fn Func, args []uintptr) uintptr {
	r, _, _ := purego.SyscallN(uintptr(fn), args...)
	return r
}

func pending() (Func, uint32, bool) { return 0, 0, false }
