package launch

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestJobsLieInTheStateFolder checks that jobs are in the state folder, or in the cache if an earlier
// version left them there, and that each kind of cluster has its own folder.
func TestJobsLieInTheStateFolder(t *testing.T) {
	state, cache := t.TempDir(), t.TempDir()
	t.Setenv("XDG_STATE_HOME", state)
	t.Setenv("XDG_CACHE_HOME", cache)
	fresh, old, err := jobsDir("model", "")
	if err != nil || old || !strings.HasPrefix(fresh, filepath.Join(state, "shoal", "jobs")) {
		t.Fatal(fresh, old, err)
	}
	rel, err := filepath.Rel(state, fresh)
	if err != nil {
		t.Fatal(err)
	}
	left := filepath.Join(cache, rel)
	if err := os.MkdirAll(left, 0o700); err != nil {
		t.Fatal(err)
	}
	if dir, old, err := jobsDir("model", ""); dir != left || !old || err != nil {
		t.Errorf("jobs of an earlier version: %s, %v, %v", dir, old, err)
	}
	if dir, old, _ := jobsDir("model", "-standby"); old || dir != fresh+"-standby" {
		t.Errorf("another kind: %s, %v", dir, old)
	}
	if dir, _, _ := jobsDir("other", ""); dir == fresh || dir == left {
		t.Errorf("another model has the same folder: %s", dir)
	}
	if err := os.MkdirAll(fresh, 0o700); err != nil {
		t.Fatal(err)
	}
	if dir, old, _ := jobsDir("model", ""); dir != fresh || old {
		t.Errorf("the state folder does not take precedence: %s", dir)
	}
}

// TestJobsOfAdapters checks that a model with an adapter has its own jobs folder.
func TestJobsOfAdapters(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	seen := map[string]bool{}
	for _, adapter := range []string{"", "/a", "/b"} {
		var c Up
		c.SwiftKV, c.Standby = adapter, true
		dir, err := c.dataDir("model", slog.New(slog.DiscardHandler))
		if err != nil || dir == "" || seen[dir] || !strings.HasSuffix(dir, "-standby") {
			t.Errorf("adapter %q: %s, %v", adapter, dir, err)
		}
		seen[dir] = true
	}
}
