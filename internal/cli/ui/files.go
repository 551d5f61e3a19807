package ui

import (
	"fmt"
	"io"
	"os"
)

// ReadSmall reads a file of at most 16 MiB.
func ReadSmall(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return ReadAll(file)
}

// ReadAll reads a file of at most 16 MiB.
func ReadAll(file *os.File) ([]byte, error) {
	const limit = 16 << 20
	text, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err == nil && len(text) > limit {
		err = fmt.Errorf("%s has more than %d bytes", file.Name(), limit)
	}
	return text, err
}

// Exists reports whether there is a file or folder at path.
func Exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// CreateLog creates or truncates a file and makes it readable only by its owner. An earlier
// version may have left a file that everyone can read.
func CreateLog(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	if err := f.Chmod(0o600); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
