//go:build unix

package weights

import (
	"io/fs"
	"syscall"
)

// onDisk is what a file takes on the disk; holes take nothing.
func onDisk(info fs.FileInfo) int64 {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return s.Blocks * 512
	}
	return info.Size()
}
