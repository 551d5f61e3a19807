package tier

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// onDisk returns the bytes of a store's own files on the disk.
func onDisk(t *testing.T, s *Store) (bytes int64) {
	t.Helper()
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil && e.Name() != lockName {
			bytes += info.Size()
		}
	}
	return bytes
}

// TestLimitWhenFilesStay: the limit holds for the bytes on the disk while it refuses to remove files.
func TestLimitWhenFilesStay(t *testing.T) {
	heads := tensor.Span{Hi: 1}
	size := name{heads: heads}.size(form)
	s := open(t, filepath.Join(t.TempDir(), "d"), 3*size)
	refuse := true
	s.unlink = func(path string) error {
		if refuse {
			return errors.New("input/output error")
		}
		return os.Remove(path)
	}
	check := func(what string, files int64) {
		t.Helper()
		if b, counted := onDisk(t, s), s.Stats().Bytes; b != files*size || counted != b {
			t.Errorf("%s: %d bytes on the disk, %d are counted; want %d", what, b, counted, files*size)
		}
	}
	for i := range 6 {
		put(s, Key{1, 0, byte(i)}, i, heads)
	}
	check("after 6 writes", 3)
	if !finds(t, s, Key{1}, 0, heads) {
		t.Error("a block that could not be removed is not used any more")
	}
	s.Forget()
	check("after Forget", 3)
	if finds(t, s, Key{1}, 0, heads) {
		t.Error("a forgotten block was read")
	}
	put(s, Key{1}, 0, heads)
	check("after a write to a full disk", 3)
	refuse = false
	put(s, Key{2}, 0, heads)
	check("when the disk removes files again", 1)
	if !finds(t, s, Key{2}, 0, heads) {
		t.Error("the new block is missing")
	}
}

// TestUnreadableFile: a file that cannot be read is removed, because nothing counts it any more.
func TestUnreadableFile(t *testing.T) {
	heads := tensor.Span{Hi: 1}
	s := open(t, filepath.Join(t.TempDir(), "d"), 1<<20)
	put(s, Key{1}, 0, heads)
	path := filepath.Join(s.dir, name{key: Key{1}, heads: heads}.String())
	if err := errors.Join(os.Remove(path), os.Symlink(path, path)); err != nil { // open fails: too many links
		t.Skip("no symbolic links: ", err)
	}
	if finds(t, s, Key{1}, 0, heads) {
		t.Fatal("a file that cannot be opened was read")
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) || s.Stats().Bytes != 0 {
		t.Errorf("%d bytes are counted, the file: %v", s.Stats().Bytes, err)
	}
	put(s, Key{1}, 0, heads)
	if !finds(t, s, Key{1}, 0, heads) {
		t.Error("the block was not written again")
	}
}
