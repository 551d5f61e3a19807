package tensor

import "golang.org/x/sys/unix"

// yield lets another thread that waits for this processor run.
func yield() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }
