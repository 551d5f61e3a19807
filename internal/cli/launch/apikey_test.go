package launch

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// TestAutoKey checks that --api-key auto makes one key, in a file that only its owner can read, and
// reuses it.
func TestAutoKey(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "api-key")
	f := listenFlags{APIKey: apiKeys{AutoKey}}
	path, err := f.resolveAutoKey(dir)
	if err != nil || len(f.APIKey[0]) < 26 {
		t.Fatalf("key %q, %v", f.APIKey, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	again := listenFlags{APIKey: apiKeys{AutoKey}}
	if _, err := again.resolveAutoKey(dir); err != nil || again.APIKey[0] != f.APIKey[0] {
		t.Errorf("the second start has %q, want %q (%v)", again.APIKey, f.APIKey, err)
	}
	given := listenFlags{APIKey: apiKeys{"mine"}}
	if path, err := given.resolveAutoKey(""); path != "" || err != nil || given.APIKey[0] != "mine" {
		t.Errorf("%q, %q, %v", path, given.APIKey, err)
	}
	for name, change := range map[string]func() error{
		"others on this machine can read it": func() error { return os.Chmod(path, 0o644) },
		"is empty":                           func() error { return os.Truncate(path, 0) },
	} {
		if err := os.Chmod(path, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := change(); err != nil {
			t.Fatal(err)
		}
		broken := listenFlags{APIKey: apiKeys{AutoKey}}
		if _, err := broken.resolveAutoKey(dir); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("got %v, want an error with %q", err, name)
		}
		if err := os.WriteFile(path, []byte(f.APIKey[0]), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// A folder for secrets that cannot be made, such as on a read-only disk: the error names the flag that sets another.
func TestSecretsWithoutAFolder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	f := listenFlags{APIKey: apiKeys{AutoKey}}
	_, apiKey := f.resolveAutoKey(filepath.Join(file, "shoal", "api-key"))
	n := &network{tokenServer: tokenServer{dataDir: file, cluster: "home"}}
	for name, err := range map[string]error{"API key": apiKey, "cluster key": n.open(nil, nil)} {
		if err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "--data-dir") {
			t.Errorf("%s: error %v, want one that names --data-dir", name, err)
		}
	}
}

// TestAutoKeyAtOnce: programs that start at once with --api-key auto use one key.
func TestAutoKeyAtOnce(t *testing.T) {
	for range 100 {
		path := filepath.Join(t.TempDir(), "api-key")
		var keys [4]string
		var wg sync.WaitGroup
		for i := range keys {
			wg.Go(func() {
				f := listenFlags{APIKey: apiKeys{AutoKey}}
				if _, err := f.resolveAutoKey(path); err != nil {
					t.Error(err)
				}
				keys[i] = f.APIKey[0]
			})
		}
		wg.Wait()
		for _, key := range keys {
			if key != keys[0] {
				t.Errorf("keys %s and %s of one file", key, keys[0])
			}
		}
	}
}
