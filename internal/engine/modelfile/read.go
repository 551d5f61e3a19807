// Package modelfile reads the files of a checkpoint: regular files only, up to a bound, and JSON as
// Python writes it.
package modelfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

var (
	// ErrNotRegular reports a FIFO, a device, a socket or a folder instead of a file.
	ErrNotRegular = errors.New("not a regular file")
	// ErrTooLarge reports a file above the caller's bound.
	ErrTooLarge = errors.New("too large")
)

// Open opens a regular file for reading. It checks the type before it opens, because opening
// a FIFO blocks until another process opens the other end. All errors are *fs.PathError.
func Open(path string) (*os.File, fs.FileInfo, error) {
	refused := &fs.PathError{Op: "open", Path: path, Err: ErrNotRegular}
	if st, err := os.Stat(path); err != nil {
		return nil, nil, err
	} else if !st.Mode().IsRegular() {
		return nil, nil, refused
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = refused
	}
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return f, st, nil
}

// Read returns the contents of a regular file of at most limit bytes. It does not read bytes
// that are appended during the call.
func Read(path string, limit int64) ([]byte, error) {
	f, st, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st.Size() > limit {
		return nil, &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("%w: %d bytes, more than %d", ErrTooLarge, st.Size(), limit)}
	}
	data := make([]byte, st.Size())
	n, err := io.ReadFull(f, data)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, err
	}
	return data[:n], nil
}
