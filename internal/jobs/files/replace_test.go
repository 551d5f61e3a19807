package files

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/shoal-llm/shoal/internal/jobs/journal/journaltest"
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

// endingReader is a reader that calls end before it ends.
type endingReader struct {
	io.Reader
	end func()
}

func (r *endingReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if errors.Is(err, io.EOF) && r.end != nil {
		r.end()
		r.end = nil
	}
	return n, err
}

// An upload ends after the files of its folder were moved to the log. It is not acknowledged, because no client would
// find it there.
func TestUploadEndsAfterTheMove(t *testing.T) {
	from, err := OpenFolder(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	to := sharedFiles(t, journaltest.NewMemoryLog())
	if _, err := from.Put(t.Context(), input("file-a"), strings.NewReader("a")); err != nil {
		t.Fatal(err)
	}
	_, err = from.Put(t.Context(), input("file-b"), &endingReader{strings.NewReader("b"), func() {
		if damage, err := to.Take(t.Context(), from, true); damage != nil || err != nil {
			t.Error(damage, err)
		}
	}})
	if _, found := to.Get(t.Context(), "file-b"); err == nil && found != nil {
		t.Errorf("acknowledged, and not there: %v", found)
	}
	if text, err := bytesOf(t, to, "file-a"); err != nil || text != "a" {
		t.Errorf("%q, %v", text, err)
	}
	if list, err := from.List(t.Context()); err != nil || len(list) > 0 {
		t.Errorf("left: %v, %v", list, err)
	}
}
