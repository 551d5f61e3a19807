package files

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// A description that cannot be written leaves no content on the disk, which may be full.
func TestFailedPutLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	f, err := OpenFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "file-a.json", "x"), 0o700); err != nil { // the rename fails
		t.Fatal(err)
	}
	if _, err := f.Put(t.Context(), input("file-a"), strings.NewReader("text")); err == nil {
		t.Fatal("no error")
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("left: %v, %v", entries, err)
	}
}

// A file is replaced and deleted while it is opened. A reader gets one of the contents, or finds no file.
func TestOpenWhileReplaced(t *testing.T) {
	f, err := OpenFolder(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var writer sync.WaitGroup
	writer.Go(func() {
		for i := range 100 {
			if _, err := f.Put(t.Context(), input("file-a"), strings.NewReader(strings.Repeat("x", 1+i%2))); err != nil {
				t.Error(err)
			}
			if i%10 == 9 {
				if err := f.Delete(t.Context(), "file-a"); err != nil {
					t.Error(err)
				}
			}
		}
	})
	ended := make(chan struct{})
	go func() { writer.Wait(); close(ended) }()
	for {
		select {
		case <-ended:
			return
		default:
		}
		if _, err := bytesOf(t, f, "file-a"); err != nil && !errors.Is(err, ErrNotFound) {
			t.Error(err)
			<-ended
			return
		}
	}
}
