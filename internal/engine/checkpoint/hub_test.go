package checkpoint_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/model/modeltest"
	"github.com/shoal-llm/shoal/internal/hub/layout"
)

// A repository of the Hugging Face cache is found and named for every form of its path.
func TestHubCache(t *testing.T) {
	top := t.TempDir()
	repo := filepath.Join(top, "models--the org--fry.v2--big")
	snapshot := filepath.Join(repo, "snapshots", "abc")
	check(t, os.MkdirAll(filepath.Join(repo, "refs"), 0o755))
	check(t, os.Mkdir(filepath.Join(repo, "snapshots"), 0o755))
	check(t, os.Rename(write(t, modeltest.Small(), 1), snapshot))
	check(t, os.Mkdir(filepath.Join(repo, "snapshots", "old"), 0o755))
	put(t, filepath.Join(repo, "refs", "main"), []byte("abc\n"))
	check(t, os.Symlink(repo, filepath.Join(top, "link")))
	check(t, os.Symlink(snapshot, filepath.Join(top, "mine")))
	const name = "the org/fry.v2/big"
	for path, want := range map[string]string{
		repo: name, repo + "/": name, repo + "/.": name, snapshot: name, snapshot + "/": name,
		filepath.Join(top, "link"): name, filepath.Join(top, "link", "snapshots", "abc"): name, filepath.Join(top, "mine"): name,
	} {
		dir, err := layout.Locate(path)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		if a, b := layout.NameOf(path), layout.NameOf(dir); a != want || b != want {
			t.Errorf("%s is called %q, its files in %s %q; want %q", path, a, dir, b, want)
		}
		if c := open(t, path); c.Dir != filepath.Clean(dir) {
			t.Errorf("%s opens %s, want %s", path, c.Dir, dir)
		}
	}
	t.Chdir(repo)
	for path, want := range map[string]string{".": name, "snapshots/abc": name, "./snapshots/abc/": name,
		"snapshots/abc/m.Q4_K.gguf": name, "random:x": "random:x"} {
		if got := layout.NameOf(path); got != want {
			t.Errorf("%s is called %q, want %q", path, got, want)
		}
	}
	refuse := func(want string) {
		t.Helper()
		if _, err := checkpoint.Open(repo); !errors.Is(err, model.ErrNoCheckpoint) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	put(t, filepath.Join(repo, "refs", "main"), []byte("gone"))
	refuse(`names the snapshot "gone", which is not in`)
	put(t, filepath.Join(repo, "refs", "main"), []byte("../../../etc"))
	refuse(`names the snapshot "../../../etc"`)
	check(t, os.Remove(filepath.Join(repo, "refs", "main")))
	refuse("holds abc, old and there is no refs/main")
	check(t, os.Remove(filepath.Join(repo, "snapshots", "old")))
	open(t, repo)
	check(t, os.RemoveAll(snapshot))
	refuse("holds no snapshot")
}
