package host

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// priority is above all threads without a real-time priority.
const priority = 10

// Punctual gives the calling goroutine a thread of its own with a real-time priority, and without
// the timer slack of 50 us. The thread ends with the goroutine. A kernel may refuse; then timing
// depends on the load of the machine.
func Punctual() {
	runtime.LockOSThread()
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	_ = unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: priority}, 0)
}
