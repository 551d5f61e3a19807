//go:build !linux

package supervise

func coarseTimers(start func() error) error { return start() }
