package wholefile

import (
	"os"
	"path/filepath"
	"testing"
)

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	at := filepath.Join(dir, "a")
	for i, mode := range []os.FileMode{0o600, 0o644} {
		text := string("ab"[i])
		if err := Write(at, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(at)
		st, _ := os.Stat(at)
		if err != nil || string(got) != text || st.Mode().Perm() != mode {
			t.Errorf("%q with mode %v, %v", got, st.Mode(), err)
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, "b", "c"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Write(filepath.Join(dir, "b"), nil, 0o600); err == nil {
		t.Error("a folder was replaced")
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 2 {
		t.Errorf("left: %v, %v", entries, err)
	}
}
