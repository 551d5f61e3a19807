//go:build unix

package security

import (
	"syscall"
	"testing"
)

// TestKeyPipe: the descriptor returns the written key, once.
func TestKeyPipe(t *testing.T) {
	k := NewKey()
	r, err := KeyPipe(k)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := syscall.Dup(int(r.Fd())) // as a child inherits it
	r.Close()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := ReadKeyPipe(fd); err != nil || !got.Equal(k) {
		t.Errorf("read back: %v", err)
	}
	// A second read would also fail on an open descriptor, because the pipe is empty.
	if err := syscall.Fstat(fd, new(syscall.Stat_t)); err != syscall.EBADF {
		t.Errorf("the descriptor is still open: %v", err)
	}
}
