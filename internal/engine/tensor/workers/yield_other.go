//go:build !linux

package workers

import "runtime"

// Yield lets another goroutine run.
func Yield() { runtime.Gosched() }
