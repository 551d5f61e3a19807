package launch

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/cli/ui"
)

// TestAPIKeysArePrivate checks that a key file that others can read is refused at the start and at a
// reload.
func TestAPIKeysArePrivate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys.json")
	if err := os.WriteFile(path, []byte(`{"keys":[{"name":"a","key":"s"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	f := &listenFlags{APIKeys: path}
	keys, err := f.keys()
	if err != nil || len(keys) != 1 {
		t.Fatal(keys, err)
	}
	before := fileStates(path)
	for _, mode := range []os.FileMode{0o644, 0o640, 0o666} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if keys, err := f.keys(); keys != nil || err == nil || !strings.Contains(err.Error(), "--api-keys") ||
			!strings.Contains(err.Error(), "chmod 600 "+path) {
			t.Errorf("%04o: %v %v", mode, keys, err)
		}
		if now := fileStates(path); now[0] == before[0] {
			t.Errorf("a change to %04o is not noticed", mode)
		}
	}
}

// TestLogsArePrivate checks that only the owner can read a log, even if an earlier version created the
// file.
func TestLogsArePrivate(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"new.log", "old.log"} {
		path := filepath.Join(dir, name)
		if name == "old.log" {
			if err := os.WriteFile(path, []byte("before"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		f, err := ui.CreateLog(path)
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 || info.Size() != 0 {
			t.Errorf("%s: %v %v", name, info, err)
		}
	}
}

// TestNoHomeForJobs checks that jobs are off without a home directory, and that the log suggests
// --data-dir.
func TestNoHomeForJobs(t *testing.T) {
	for _, name := range []string{"HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "LocalAppData"} {
		t.Setenv(name, "")
	}
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, nil))
	var c Up
	if dir, err := c.dataDir("/model", log); dir != "" || err != nil {
		t.Fatal(dir, err)
	}
	if text := out.String(); !strings.Contains(text, "level=WARN") || !strings.Contains(text, "jobs") ||
		!strings.Contains(text, "are off") || !strings.Contains(text, "--data-dir") {
		t.Errorf("the log has %q", text)
	}
	out.Reset()
	c.DataDir = "/elsewhere"
	if dir, err := c.dataDir("/model", log); dir != "/elsewhere" || err != nil || out.Len() > 0 {
		t.Error(dir, err, out.String())
	}
}
