//go:build !linux

package tensor

import "runtime"

// yield lets another goroutine run.
func yield() { runtime.Gosched() }
