package layout

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestNameOf(t *testing.T) {
	dir := t.TempDir()
	commit := strings.Repeat("a", 40)
	repo := filepath.Join(dir, "models--org--name")
	for _, d := range []string{"blobs", "refs", "snapshots/" + commit + "/sub"} {
		os.MkdirAll(filepath.Join(repo, d), 0o755)
	}
	blob := filepath.Join(repo, "blobs", strings.Repeat("b", 64))
	os.WriteFile(blob, []byte("x"), 0o644)
	os.WriteFile(filepath.Join(repo, "refs/main"), []byte(commit), 0o644)
	snapshot := filepath.Join(repo, "snapshots", commit)
	os.Symlink("../../blobs/"+filepath.Base(blob), filepath.Join(snapshot, "m.gguf"))
	os.Symlink(repo, filepath.Join(dir, "link"))
	os.Symlink(filepath.Join(snapshot, "m.gguf"), filepath.Join(dir, "mine.gguf"))
	os.MkdirAll(filepath.Join(dir, "plain"), 0o755)
	os.Symlink("plain", filepath.Join(dir, "alias"))
	for path, want := range map[string]string{
		repo: "org/name", repo + "/": "org/name", snapshot: "org/name", snapshot + "/": "org/name", blob: "org/name",
		filepath.Join(snapshot, "m.gguf"): "org/name", filepath.Join(snapshot, "sub"): "org/name",
		filepath.Join(dir, "link"): "org/name", filepath.Join(dir, "mine.gguf"): "org/name",
		filepath.Join(dir, "plain") + "/": "plain", filepath.Join(dir, "alias"): "alias",
		filepath.Join(dir, "q.Q4_K_M.GGUF"): "q.Q4_K_M", filepath.Join(repo, "other", "x"): "x",
		"/m/models--a/x": "x", "tiny:0.1b.gguf": "tiny:0.1b",
	} {
		if got := NameOf(path); got != want {
			t.Errorf("NameOf(%s) = %q, want %q", strings.TrimPrefix(path, dir), got, want)
		}
	}
	for path, want := range map[string]string{repo: snapshot, repo + "/": snapshot, snapshot: snapshot,
		filepath.Join(dir, "plain"): filepath.Join(dir, "plain"), filepath.Join(dir, "none"): filepath.Join(dir, "none")} {
		if got, err := Locate(path); err != nil || got != want {
			t.Errorf("Locate(%s) = %s, %v; want %s", path, got, err, want)
		}
	}
	if got, err := Locate(blob); err != nil || got != filepath.Join(snapshot, "m.gguf") {
		t.Errorf("Locate of a blob: %s, %v", got, err)
	}
	old := filepath.Join(dir, "models--gpt2", "snapshots", commit) // from before all repositories had an owner
	os.MkdirAll(old, 0o755)
	os.WriteFile(filepath.Join(old, "model.safetensors"), nil, 0o644)
	if got, err := Locate(filepath.Join(old, "model.safetensors")); err != nil || got != old || NameOf(got) != "gpt2" {
		t.Errorf("Locate of a file of weights: %s, %v, %s", got, err, NameOf(got))
	}
	if got, err := Locate(filepath.Join(dir, "link")); err != nil || NameOf(got) != "org/name" {
		t.Errorf("Locate of a link: %s, %v", got, err)
	}
	os.Rename(snapshot, filepath.Join(repo, "snapshots", "other"))
	if _, err := Locate(repo); !errors.Is(err, ErrSnapshot) {
		t.Errorf("a main that is not there: %v", err)
	}
	os.Remove(filepath.Join(repo, "refs/main"))
	if got, err := Locate(repo); err != nil || filepath.Base(got) != "other" {
		t.Errorf("the only snapshot: %s, %v", got, err)
	}
	os.Mkdir(snapshot, 0o755)
	if _, err := Locate(repo); !errors.Is(err, ErrSnapshot) || !strings.Contains(err.Error(), commit) {
		t.Errorf("two snapshots: %v", err)
	}
}

func TestNameOfPlainPaths(t *testing.T) {
	for path, want := range map[string]string{
		"models/fry": "fry", "models/fry/": "fry", "a/b.gguf": "b", "a/b.GGUF": "b", "a/snapshots/v1": "v1", "x.y": "x.y",
	} {
		if got := NameOf(path); got != want {
			t.Errorf("%s is called %q, want %q", path, got, want)
		}
	}
}

// TestOrigin names the commit of a snapshot folder and of a file directly in it, and of nothing else.
func TestOrigin(t *testing.T) {
	commit := strings.Repeat("a", 40)
	snapshot := "/m/models--org--name/snapshots/" + commit
	for path, want := range map[string]string{
		snapshot: "org/name@" + commit, snapshot + "/": "org/name@" + commit, snapshot + "/m.gguf": "org/name@" + commit,
		snapshot + "/sub/m.gguf": "", "/m/models--org--name": "", "/m/models--org--name/snapshots/v1": "",
		"/m/org/snapshots/" + commit: "", "models/fry": "",
	} {
		if got := Origin(path); got != want {
			t.Errorf("Origin(%s) = %q, want %q", path, got, want)
		}
	}
}
