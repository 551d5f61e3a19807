package flock

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
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
	if content, err := io.ReadAll(f); string(content) != "who" {
		t.Errorf("the holder wrote %q, %v", content, err)
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

// TestRemoved: a holder may remove the file before it releases the lock. One process at a time holds the lock of the
// name all the same.
func TestRemoved(t *testing.T) {
	const holders, times = 8, 300
	path := filepath.Join(t.TempDir(), "lock")
	var inside atomic.Int32
	var wg sync.WaitGroup
	for range holders {
		wg.Go(func() {
			for range times {
				f, err := Open(path, Own)
				if err == nil {
					if n := inside.Add(1); n != 1 {
						t.Errorf("%d hold the lock", n)
					}
					runtime.Gosched()
					inside.Add(-1)
					err = os.Remove(path)
				}
				if err != nil && !errors.Is(err, ErrHeld) {
					t.Error(err)
				}
				f.Close()
			}
		})
	}
	wg.Wait()
}
