package cluster_test

import (
	"fmt"
	"syscall"
	"testing"
)

// smallDisk returns a folder on a separate file system of the given size. It requires root.
func smallDisk(t *testing.T, bytes int) string {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", bytes)); err != nil {
		t.Skipf("NOT TESTED: a full disk: a tmpfs cannot be mounted here (%v); run as root", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	return dir
}
