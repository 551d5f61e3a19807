package supervise

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// timerSlack is how late a timer of a child may fire. The Go runtime has a thread
// that looks after the others; whenever its process wakes from a wait, this thread
// looks every 20 us for a millisecond. Where processes share cores and wait for one
// another several hundred times a second, that was half of all context switches.
const timerSlack = 2 * time.Millisecond

// coarseTimers calls start on a thread with this slack: a process that it starts
// inherits it, and keeps it.
func coarseTimers(start func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err == nil && unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(timerSlack), 0, 0, 0) == nil {
		defer func() { _ = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(before), 0, 0, 0) }()
	}
	return start()
}
