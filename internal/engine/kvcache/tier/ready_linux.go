package tier

import (
	"os"

	"golang.org/x/sys/unix"
)

// diskFile is a file whose bytes can be had without waiting when the system has them in memory.
type diskFile struct{ *os.File }

// ReadReady is ReadAt that never waits for a disk; false: it would, or that cannot be known.
func (f diskFile) ReadReady(b []byte, at int64) bool {
	n, err := unix.Preadv2(int(f.Fd()), [][]byte{b}, at, unix.RWF_NOWAIT)
	return err == nil && n == len(b)
}
