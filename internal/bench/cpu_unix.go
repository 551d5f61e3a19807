//go:build unix

package bench

import (
	"syscall"
	"time"
)

// cpuTime returns the CPU time of all threads of this process.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
