package security

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"github.com/shoal-llm/shoal/internal/sys/wholefile"
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

// CreatePrivate writes a new file that only its owner can read. Another process sees the whole file or none. A file
// that is there stays, with the error fs.ErrExist: of several processes that make it at once, all then read the same.
func CreatePrivate(path string, text []byte) error {
	if _, err := os.Lstat(path); err == nil {
		return &fs.PathError{Op: "create", Path: path, Err: fs.ErrExist}
	}
	tmp, err := wholefile.Temp(filepath.Dir(path), text) // 0600
	if err != nil {
		return err
	}
	defer os.Remove(tmp)
	if err = os.Link(tmp, path); err != nil && !errors.Is(err, fs.ErrExist) {
		err = createPlain(path, text) // a file system without hard links
	}
	if err != nil {
		return err
	}
	return wholefile.SyncDir(filepath.Dir(path))
}

func createPlain(path string, text []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		_ = os.Remove(path) // a part of it would be taken for the file
	}
	return err
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
