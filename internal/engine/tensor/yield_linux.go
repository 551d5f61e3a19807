package tensor

import "golang.org/x/sys/unix"

// yield lets another thread run that waits for this CPU.
func yield() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }
