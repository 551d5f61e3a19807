//go:build !(linux && (amd64 || purego))

package native

import (
	"fmt"
	"runtime"
)

func linked() error {
	return fmt.Errorf("%w: there is no support for %s/%s", ErrUnavailable, runtime.GOOS, runtime.GOARCH)
}

func open(string) (uintptr, error) { return 0, linked() }

func symbol(uintptr, string) Func { return 0 }

func call(Func, []uintptr) uintptr { panic("native: no library can have been opened") }

func pending() (Func, uint32, bool) { return 0, 0, false }
