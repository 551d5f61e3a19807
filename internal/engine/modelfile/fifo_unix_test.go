//go:build unix

package modelfile

import (
	"errors"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestReadRefusesFIFO(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokenizer.json")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Skip(err)
	}
	if _, err := Read(path, 10); !errors.Is(err, ErrNotRegular) {
		t.Errorf("Read of a FIFO: %v, want %v", err, ErrNotRegular)
	}
}
