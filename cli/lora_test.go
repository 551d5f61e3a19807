package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/model"
)

// A merged adapter is of the bytes that its base has: one changed row of the base is another
// folder, also when the base's time of modification was put back.
func TestMergedFollowsItsBase(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	dir := t.TempDir()
	base, adapter := filepath.Join(dir, "base"), filepath.Join(dir, "adapter")
	for to, from := range map[string]string{base: "../models/fry", adapter: "../models/fry-tools"} {
		if err := os.CopyFS(to, os.DirFS(from)); err != nil {
			t.Fatal(err)
		}
	}
	config := filepath.Join(adapter, "adapter_config.json")
	text, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(config, []byte(strings.ReplaceAll(string(text), `"../fry"`, `"../base"`)), 0o600); err != nil {
		t.Fatal(err)
	}
	seen := map[string]string{}
	merge := func(what string) string {
		t.Helper()
		out, err := merged(adapter)
		if err != nil {
			t.Fatal(err)
		}
		if filepath.Base(out) != "adapter" {
			t.Errorf("%s: the merged model lies in %s", what, out)
		}
		seen[out] = what
		return out
	}
	first := merge("first")
	if merge("again") != first || len(seen) != 1 {
		t.Fatalf("two merges of the same files: %v", seen)
	}
	weights := filepath.Join(base, "model.safetensors")
	st, err := os.Stat(weights)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(weights, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(make([]byte, 700), st.Size()/3+1000); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(weights, st.ModTime(), st.ModTime()); err != nil {
		t.Fatal(err)
	}
	second := merge("edited base")
	if second == first {
		t.Fatal("the old merged weights serve an edited base")
	}
	hash := func(dir string) string {
		ck, err := model.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer ck.Close()
		return ck.Hash()
	}
	if hash(first) == hash(second) {
		t.Error("both merged models have one hash")
	}
}
