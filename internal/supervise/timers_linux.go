package supervise

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// timerSlack is the timer slack of a child. The Go runtime has a monitor thread. Whenever its
// process wakes, this thread polls every 20 us for a millisecond. If processes share cores and wait
// for each other several hundred times a second, that causes half of all context switches.
const timerSlack = 2 * time.Millisecond

// coarseTimers calls start on a thread with this slack. A process started there inherits it.
func coarseTimers(start func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err == nil && unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(timerSlack), 0, 0, 0) == nil {
		defer func() { _ = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(before), 0, 0, 0) }()
	}
	return start()
}
