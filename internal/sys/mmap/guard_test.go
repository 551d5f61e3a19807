//go:build unix

package mmap

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestGuard(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, make([]byte, 1<<16), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	data, unmap, err := File(f, 1<<16)
	if err != nil {
		t.Fatal(err)
	}
	read := func() { _ = append([]byte(nil), data...) }
	if err := Guard(read); err != nil {
		t.Error(err)
	}
	if err := os.Truncate(path, 100); err != nil {
		t.Skip(err)
	}
	if err := Guard(read); !errors.Is(err, ErrFault) {
		t.Errorf("bytes that are not there: %v", err)
	}
	if err := unmap(); err != nil {
		t.Error(err)
	}
	defer func() {
		if p := recover(); p != "mine" {
			t.Errorf("recovered %v, want the panic of the function", p)
		}
	}()
	_ = Guard(func() { panic("mine") })
}
