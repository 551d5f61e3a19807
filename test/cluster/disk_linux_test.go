package cluster_test

import (
	"fmt"
	"syscall"
	"testing"
)

// smallDisk is a folder on a file system of its own, of so many bytes. It takes
// root.
func smallDisk(t *testing.T, bytes int) string {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", bytes)); err != nil {
		t.Skipf("NOT TESTED: a full disk: a tmpfs cannot be mounted here (%v); run as root", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	return dir
}
