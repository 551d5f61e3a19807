package hub

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/hub/hubtest"
)

func refs(t *testing.T, s *Store) (out []string) {
	t.Helper()
	list, err := s.List()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		text := e.Ref.String() + " " + e.Format
		if e.Problem != "" {
			text += " " + e.Problem
		}
		out = append(out, text)
	}
	return out
}

// TestListAndRemove: files of one model alone are removed with it, and shared files stay.
func TestListAndRemove(t *testing.T) {
	repo := oneFile()
	a, b := content(5, 3000), content(6, 2000)
	h := start(t, map[string]*hubtest.Repo{
		"org/one":  repo,
		"org/gguf": {Files: map[string][]byte{"m-Q4_0.gguf": a, "m-Q8_0.gguf": b}, LFS: map[string]bool{"m-Q4_0.gguf": true}},
	})
	g := startRegistry(t)
	g.Models["library/m:a"], g.Models["library/m:b"] = layersOf(a), layersOf(a)
	s := at(t, h)
	if got := refs(t, s); len(got) > 0 {
		t.Errorf("an empty cache lists %q", got)
	}
	for _, text := range []string{"org/one@v1", "org/gguf:Q4_0", "org/gguf:Q8_0",
		"ollama://" + g.Host + "/m:a", "ollama://" + g.Host + "/m:b"} {
		if _, err := pull(t, s, text); err != nil {
			t.Fatal(err)
		}
	}
	old := repo.Commit()
	h.Lock()
	repo.Files["config.json"] = []byte(`{"model_type":"qwen3", "new": true}`)
	h.Unlock()
	if _, err := pull(t, s, "org/one"); err != nil {
		t.Fatal(err)
	}
	registry := "ollama://" + g.Host + "/library/m:"
	want := []string{registry + "a gguf", registry + "b gguf", "org/gguf:m-Q4_0.gguf gguf",
		"org/gguf:m-Q8_0.gguf gguf", "org/one safetensors", "org/one@v1 safetensors"}
	if got := refs(t, s); !slices.Equal(got, want) {
		t.Errorf("the list is\n%q, want\n%q", got, want)
	}
	shared := int64(len(layersOf(a)[1].Content) + len(layersOf(a)[2].Content))
	if freed, err := s.Remove(parsed(t, "org/one:Q8_0")); !errors.Is(err, ErrNotCached) {
		t.Errorf("a quantization that is not here: %d, %v", freed, err)
	}
	for _, c := range []struct {
		text  string
		freed int64
		left  []string
	}{
		{"org/one@v1", int64(len(`{"model_type":"llama"}`)), slices.Delete(slices.Clone(want), 5, 6)},
		{"org/gguf:Q4_0", 3000, []string{want[0], want[1], want[3], want[4]}},
		{"org/gguf", 2000, []string{want[0], want[1], want[4]}},
		{registry + "a", 0, []string{want[1], want[4]}},
		{registry + "b", 3000 + shared, []string{want[4]}},
		{"org/one", 500_000 + 2 + int64(len(repo.Files["config.json"])), nil},
	} {
		freed, err := s.Remove(parsed(t, c.text))
		if err != nil || freed != c.freed {
			t.Errorf("removing %s freed %d bytes, %v; want %d", c.text, freed, err, c.freed)
		}
		if got := refs(t, s); !slices.Equal(got, c.left) {
			t.Errorf("after removing %s the list is\n%q, want\n%q", c.text, got, c.left)
		}
	}
	if _, err := os.Stat(repoCache{s.s.Cache, "org/one"}.snapshot(old)); err == nil {
		t.Error("the old snapshot is still there")
	}
	left, _ := filepath.Glob(filepath.Join(s.s.Cache, "models--*"))
	if blobs, _ := filepath.Glob(filepath.Join(s.s.ModelsDir, "blobs", "*")); len(left)+len(blobs) > 0 {
		t.Errorf("left are %q, %q", left, blobs)
	}
	if _, err := s.Remove(parsed(t, "org/one")); !errors.Is(err, ErrNotCached) {
		t.Errorf("removing twice: %v", err)
	}
}

func TestListShowsIncompleteModels(t *testing.T) {
	h := start(t, map[string]*hubtest.Repo{"org/one": oneFile()})
	s := at(t, h)
	if _, err := s.Config(t.Context(), parsed(t, "org/one")); err != nil {
		t.Fatal(err)
	}
	list, err := s.List()
	if err != nil || len(list) != 1 || !strings.Contains(list[0].Problem, "no weights") || list[0].Bytes != int64(len(`{"model_type":"llama"}`)) {
		t.Errorf("%+v, %v", list, err)
	}
	if freed, err := s.Remove(parsed(t, "org/one")); err != nil || freed == 0 {
		t.Errorf("%d, %v", freed, err)
	}
}

// Removing a split model whose second part is missing, as after a pull that was killed, leaves the other model of the
// snapshot.
func TestRemoveIncompleteGGUF(t *testing.T) {
	h := start(t, map[string]*hubtest.Repo{"org/gguf": {Files: map[string][]byte{"m-Q4_0.gguf": content(5, 3000),
		"m-Q8_0-00001-of-00002.gguf": content(6, 2000), "m-Q8_0-00002-of-00002.gguf": content(7, 1000)}}})
	s := at(t, h)
	m, err := pull(t, s, "org/gguf:Q4_0")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pull(t, s, "org/gguf:Q8_0"); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(filepath.Dir(m.Path), "m-Q8_0-00002-of-00002.gguf")); err != nil {
		t.Fatal(err)
	}
	if freed, err := s.Remove(parsed(t, "org/gguf:Q8_0")); err != nil || freed != 3000 {
		t.Errorf("%d bytes, %v", freed, err)
	}
	if got := refs(t, s); !slices.Equal(got, []string{"org/gguf:m-Q4_0.gguf gguf"}) {
		t.Errorf("left: %q", got)
	}
	if got, err := os.ReadFile(m.Path); err != nil || len(got) != 3000 {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

func TestListOllama(t *testing.T) {
	s := at(t, nil)
	b := content(1, 1000)
	for name, text := range map[string][]byte{"blobs/sha256-" + hubtest.SHA256(b): b,
		"manifests/" + OllamaHost + "/library/m/1b": hubtest.ManifestOf(layersOf(b))} {
		at := filepath.Join(s.s.Ollama, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, text, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if got := refs(t, s); !slices.Equal(got, []string{"ollama://m:1b gguf"}) {
		t.Errorf("the list is %q", got)
	}
	if _, err := s.Remove(parsed(t, "ollama://m:1b")); err == nil || !strings.Contains(err.Error(), "ollama rm") {
		t.Errorf("removing Ollama's: %v", err)
	}
}

// TestRecordedAt: each kind of download leaves hashes to compare with.
func TestRecordedAt(t *testing.T) {
	repo := oneFile()
	h := start(t, map[string]*hubtest.Repo{"org/one": repo})
	g := startRegistry(t)
	g.Models["library/m:a"] = layersOf(content(5, 3000))
	s := at(t, h)
	for text, want := range map[string]int{"org/one": 3, "ollama://" + g.Host + "/m:a": 1} {
		m, err := pull(t, s, text)
		if err != nil {
			t.Fatal(err)
		}
		files, err := RecordedAt(m.Path)
		if err != nil || len(files) != want {
			t.Errorf("%s: %+v, %v", text, files, err)
		}
		for _, f := range files {
			if err := CheckFile(f.Path, f.Digest, nil); err != nil {
				t.Error(err)
			}
		}
	}
	plain := t.TempDir()
	os.WriteFile(filepath.Join(plain, "model.safetensors"), content(1, 10), 0o644)
	if files, err := RecordedAt(plain); err != nil || len(files) > 0 {
		t.Errorf("a plain folder: %+v, %v", files, err)
	}
}
