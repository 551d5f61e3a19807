package cluster

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
)

// The fingerprint identifies prefixes on disk and resumable jobs. It depends on every byte of the
// weights.
func TestFingerprintFollowsWeights(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("../models/fry")); err != nil {
		t.Fatal(err)
	}
	print := func() string {
		ck, err := checkpoint.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer ck.Close()
		_, print := Identify(ck, &ServeConfig{Model: dir})
		return print
	}
	path := filepath.Join(dir, "model.safetensors")
	first := print()
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 1)
	at := st.Size()/2 + 12345
	if _, err := f.ReadAt(b, at); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 1
	if _, err := f.WriteAt(b, at); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(path, st.ModTime(), st.ModTime()); err != nil {
		t.Fatal(err)
	}
	if again := print(); again == first {
		t.Errorf("one bit of the weights differs, the fingerprint is %s both times", first)
	}
}
