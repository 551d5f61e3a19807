package ui

import (
	"errors"
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

// CreateLog creates or truncates a file to append to, and makes it readable only by its owner. An earlier
// version may have left a file that everyone can read.
func CreateLog(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	if err := f.Chmod(0o600); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Output is a file that a command writes at its end. It is opened at the beginning, so that a wrong path fails before
// hours of work. An earlier file keeps its content until the first write.
type Output struct {
	file *os.File // nil: no file
	made bool     // there was no file, and nothing has been written
	open bool     // the earlier content is gone
}

// OpenOutput opens or creates a file. With path "" nothing is written.
func OpenOutput(path string) (*Output, error) {
	if path == "" {
		return &Output{}, nil
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	made := err == nil
	if errors.Is(err, os.ErrExist) {
		f, err = os.OpenFile(path, os.O_WRONLY, 0)
	}
	return &Output{file: f, made: made}, err
}

// Write appends to the text of this command.
func (o *Output) Write(text []byte) (int, error) {
	if o.file == nil {
		return len(text), nil
	}
	if !o.open {
		if err := o.file.Truncate(0); err != nil && o.regular() { // a pipe or a terminal has no length
			return 0, err
		}
		o.open, o.made = true, false
	}
	return o.file.Write(text)
}

func (o *Output) regular() bool {
	info, err := o.file.Stat()
	return err == nil && info.Mode().IsRegular()
}

// Close closes the file. It removes a file that OpenOutput has created and nobody has written.
func (o *Output) Close() error {
	if o.file == nil {
		return nil
	}
	err := o.file.Close()
	if o.made {
		err = errors.Join(err, os.Remove(o.file.Name()))
	}
	return err
}
