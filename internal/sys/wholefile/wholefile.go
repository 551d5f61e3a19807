// Package wholefile writes files of which other processes, and later ones, see the whole content or none.
package wholefile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
)

// Write creates or replaces a file. After a crash or a power loss it has the old or the new content.
func Write(path string, text []byte, mode fs.FileMode) error {
	tmp, err := Temp(filepath.Dir(path), text)
	if err != nil {
		return err
	}
	if err = os.Chmod(tmp, mode); err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		_ = os.Remove(tmp)
		return fmt.Errorf("wholefile: write %s: %w", path, err)
	}
	return SyncDir(filepath.Dir(path))
}

// Temp writes a new file in a folder, with mode 0600, and syncs it. The caller gives it its name, or removes it. After a
// crash a file .new-*.tmp may be left.
func Temp(dir string, text []byte) (path string, err error) {
	f, err := os.CreateTemp(dir, ".new-*.tmp")
	if err != nil {
		return "", fmt.Errorf("wholefile: %w", err)
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		_ = os.Remove(f.Name())
		return "", fmt.Errorf("wholefile: %w", err)
	}
	return f.Name(), nil
}

// SyncDir makes the names in a folder outlive a power loss. A system that cannot sync folders is not an error.
func SyncDir(dir string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("wholefile: %w", err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil && !errors.Is(err, errors.ErrUnsupported) && !errors.Is(err, syscall.EINVAL) {
		return fmt.Errorf("wholefile: sync %s: %w", dir, err)
	}
	return nil
}
