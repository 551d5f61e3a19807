// Package resultfile appends records to a file of JSON lines. A run that was interrupted continues: the
// file is read first, and an incomplete last line, which a killed process leaves, is removed.
package resultfile

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"github.com/shoal-llm/shoal/internal/sys/flock"
)

// ErrFile: the file cannot be used.
var ErrFile = errors.New("eval: results file")

// File is an open file of records. Its methods must not be called concurrently.
type File struct{ f *os.File }

// Open opens or creates a file and calls have with every complete line. An error of have leaves the
// file unchanged. Where the system can lock files, it refuses a file that another run has open: each would
// overwrite the records of the other.
func Open(path string, have func(line []byte) error) (*File, error) {
	f, err := flock.Open(path, flock.Own)
	switch {
	case errors.Is(err, flock.ErrHeld):
		err = fmt.Errorf("%w %s: another run appends to it: wait until it ends, or name another folder", ErrFile, path)
		return nil, errors.Join(err, f.Close())
	case errors.Is(err, errors.ErrUnsupported), errors.Is(err, syscall.ENOLCK): // NFS without locks
		f, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFile, err)
	}
	whole, err := Read(f, have)
	if err == nil {
		err = f.Truncate(whole)
	}
	if err == nil {
		_, err = f.Seek(whole, io.SeekStart)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%w %s: %w", ErrFile, path, err), f.Close())
	}
	return &File{f}, nil
}

// Read calls have with all complete lines and returns their length in bytes.
func Read(in io.Reader, have func(line []byte) error) (whole int64, err error) {
	r := bufio.NewReaderSize(in, 1<<20)
	for n := 1; ; n++ {
		line, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return whole, nil
		}
		if err != nil {
			return 0, err
		}
		if err := have(line); err != nil {
			return 0, fmt.Errorf("line %d is not a result (%.60q): %w: move the file away or name another folder", n, bytes.TrimSpace(line), err)
		}
		whole += int64(len(line))
	}
}

// Append adds a record. It is in the file when Append returns.
func (f *File) Append(record any) error {
	line, err := json.Marshal(record)
	if err != nil {
		return err
	}
	if _, err := f.f.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("%w: %w", ErrFile, err)
	}
	return nil
}

func (f *File) Close() error { return f.f.Close() }
