package flock

import (
	"errors"
	"io"
	"path/filepath"
	"testing"
)

func TestOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	a, err := Open(path, Share)
	if err != nil {
		t.Fatal(err)
	}
	b, err := Open(path, Share)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.WriteString("who"); err != nil {
		t.Fatal(err)
	}
	f, err := Open(path, Own)
	if !errors.Is(err, ErrHeld) {
		t.Fatalf("an exclusive lock next to two shared ones: %v", err)
	}
	if said, err := io.ReadAll(f); string(said) != "who" {
		t.Errorf("the holder wrote %q, %v", said, err)
	}
	f.Close()
	a.Close()
	b.Close()
	own, err := Open(path, Own)
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	if f, err = Open(path, Own); !errors.Is(err, ErrHeld) {
		t.Fatalf("two locks of their own: %v", err)
	}
	f.Close()
	if _, err := Open(filepath.Join(path, "not a folder"), Own); err == nil || errors.Is(err, ErrHeld) {
		t.Errorf("under a file: %v", err)
	}
}
