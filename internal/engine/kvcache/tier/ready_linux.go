package tier

import (
	"os"

	"golang.org/x/sys/unix"
)

// diskFile is a file that can be read without waiting if the bytes are in the page cache.
type diskFile struct{ *os.File }

// ReadReady is ReadAt that never waits for a disk. It returns false if it would have to, or if that
// is unknown.
func (f diskFile) ReadReady(b []byte, at int64) bool {
	n, err := unix.Preadv2(int(f.Fd()), [][]byte{b}, at, unix.RWF_NOWAIT)
	return err == nil && n == len(b)
}
