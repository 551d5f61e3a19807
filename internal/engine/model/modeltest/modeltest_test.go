package modeltest

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

func TestWriteIsDeterministic(t *testing.T) {
	for name, s := range Shapes() {
		dirs := []string{t.TempDir(), t.TempDir(), t.TempDir()}
		for i, seed := range []uint64{1, 1, 2} {
			if err := Write(dirs[i], s, seed); err != nil {
				t.Fatal(err)
			}
		}
		files, err := os.ReadDir(dirs[0])
		if err != nil || len(files) < 3 {
			t.Fatal(files, err)
		}
		var differ bool
		for _, f := range files {
			var data [3][]byte
			for i, dir := range dirs {
				if data[i], err = os.ReadFile(filepath.Join(dir, f.Name())); err != nil {
					t.Fatal(err)
				}
			}
			if !bytes.Equal(data[0], data[1]) {
				t.Errorf("%s: %s differs between two runs", name, f.Name())
			}
			differ = differ || !bytes.Equal(data[0], data[2])
		}
		if !differ {
			t.Errorf("%s: the seed changes nothing", name)
		}
	}
}

func TestWriteRefusesImpossibleShapes(t *testing.T) {
	s := Small()
	s.KVHeads = 3
	if err := Write(t.TempDir(), s, 1); err == nil {
		t.Error("4 heads shared three KV heads")
	}
	if err := Write(t.TempDir(), Shape{}, 1); err != nil {
		t.Errorf("the zero shape: %v", err)
	}
}
