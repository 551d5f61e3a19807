package security

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A file of secrets is a regular file that only its owner can read.
func TestOpenPrivate(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "secrets")
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for mode, want := range map[os.FileMode]string{0o600: "", 0o400: "", 0o700: "", 0o640: "mode 0640",
		0o604: "mode 0604", 0o644: "chmod 600 " + path, 0o620: "mode 0620", 0o601: "mode 0601"} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		f, err := OpenPrivate(path)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%04o: %v, want %q", mode, err, want)
		}
		if err == nil {
			f.Close()
		}
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600); err != nil {
		t.Skip(err)
	}
	for _, name := range []string{"fifo", ".", "none"} {
		if _, err := OpenPrivate(filepath.Join(dir, name)); err == nil {
			t.Errorf("%s is opened", name)
		}
	}
}
