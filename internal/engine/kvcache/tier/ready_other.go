//go:build !linux

package tier

import "os"

// diskFile is a file. This platform cannot report whether a read would wait for the disk.
type diskFile struct{ *os.File }
