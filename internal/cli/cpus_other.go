//go:build !linux

package cli

// allowedCPUs tells which processors this process may use.
func allowedCPUs() func(cpu int) bool { return func(int) bool { return true } }
