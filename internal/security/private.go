package security

import (
	"fmt"
	"os"
	"runtime"
)

// OpenPrivate opens a file with secrets. It must be a regular file that only its owner can read.
// The mode is not checked on Windows.
func OpenPrivate(path string) (*os.File, error) {
	// Opening a FIFO would wait for a writer, so check the file type first.
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil {
		err = private(path, info.Mode())
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func private(path string, mode os.FileMode) error {
	switch perm := mode.Perm(); {
	case !mode.IsRegular():
		return fmt.Errorf("%s is not a regular file", path)
	case perm&0o077 != 0 && runtime.GOOS != "windows":
		return fmt.Errorf("%s has mode %04o, so others on this machine can read it; run 'chmod 600 %s'", path, perm, path)
	}
	return nil
}
