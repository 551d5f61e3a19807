//go:build !linux

package tier

import "os"

// diskFile is a file.
type diskFile struct{ *os.File }
