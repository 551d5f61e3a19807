//go:build !linux

package supervise

// onCPUs calls start; only Linux has NUMA nodes to place processes on.
func onCPUs(_ []int, start func() error) error { return start() }
