package tier

import (
	"errors"
	"path/filepath"
	"syscall"
	"testing"
)

// A disk that is full below the limit refuses the write, and has room again when the file is
// closed.
func TestScratchDiskFull(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "kv")
	if err := private(dir, "test"); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m,mode=700"); err != nil {
		t.Skipf("NOT TESTED: a full disk: a tmpfs cannot be mounted here (%v); run as root", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	s := scratch(t, dir, 1<<30)
	p, err := s.Create(4 << 20)
	if err != nil {
		t.Fatal(err)
	}
	all := numbers(4 << 20)
	if err := p.Write(all, 0); !errors.Is(err, syscall.ENOSPC) || !errors.Is(err, ErrScratch) || !s.Paused() {
		t.Errorf("4 MiB on a disk of one: %v", err)
	}
	p.Close()
	settles(t, s)
	s.disk.pausedUntil.Store(nil)
	p, err = s.Create(1 << 19)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Write(all[:1<<19], 0); err != nil {
		t.Errorf("the room of a file that is gone: %v", err)
	}
	p.Close()
	settles(t, s)
}
