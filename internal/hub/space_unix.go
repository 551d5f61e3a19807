//go:build linux || darwin

package hub

import "golang.org/x/sys/unix"

// freeSpace returns the number of bytes that this user may write below a folder; false: unknown.
func freeSpace(dir string) (int64, bool) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, false
	}
	return int64(st.Bavail) * int64(st.Bsize), true //nolint:unconvert // Bsize is 32 bits on Darwin
}
