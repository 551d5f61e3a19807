package launch

import (
	"golang.org/x/sys/unix"
)

// allowedCPUs returns a function that reports whether this process may use a CPU.
func allowedCPUs() func(cpu int) bool {
	var set unix.CPUSet
	if unix.SchedGetaffinity(0, &set) != nil {
		return func(int) bool { return true }
	}
	return set.IsSet
}
