package cli

import "golang.org/x/sys/unix"

// allowedCPUs tells which processors this process may use.
func allowedCPUs() func(cpu int) bool {
	var set unix.CPUSet
	if unix.SchedGetaffinity(0, &set) != nil {
		return func(int) bool { return true }
	}
	return set.IsSet
}
