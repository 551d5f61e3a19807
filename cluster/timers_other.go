//go:build !linux

package cluster

func coarseTimers(start func() error) error { return start() }
