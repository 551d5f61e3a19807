//go:build !linux && !darwin

package hub

func freeSpace(string) (int64, bool) { return 0, false }
