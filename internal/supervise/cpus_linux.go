package supervise

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// onCPUs calls start on a thread that may only run on cpus: a process that start makes inherits
// that. No cpus: no change.
func onCPUs(cpus []int, start func() error) error {
	if len(cpus) == 0 {
		return start()
	}
	var before, want unix.CPUSet
	for _, cpu := range cpus {
		want.Set(cpu)
	}
	runtime.LockOSThread()
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("read the processors of this thread: %w", err)
	}
	if err := unix.SchedSetaffinity(0, &want); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("use only processors %v: %w", cpus, err)
	}
	err := start()
	if unix.SchedSetaffinity(0, &before) == nil {
		runtime.UnlockOSThread() // else the thread ends with its goroutine
	}
	return err
}
