package launch

import (
	"os"
	"path/filepath"
	"testing"
)

// TestPairStore: which files in the data directory of up --standby make its first coordinator wait for the other one, and
// make up without --standby refuse the directory.
func TestPairStore(t *testing.T) {
	for name, c := range map[string]struct {
		files              []string
		replicated, exists bool
	}{
		"new":                  {nil, false, false},
		"of up":                {[]string{"jetstream"}, false, false},
		"one copy":             {[]string{"coordinator/jetstream"}, false, true},
		"being formed":         {[]string{"coordinator/jetstream", "standby/store.json"}, false, true},
		"formed here":          {[]string{"coordinator/jetstream", "coordinator/store.json", "standby/store.json"}, true, true},
		"three copies":         {[]string{"coordinator/store.json", "standby/store.json", "node-0/store.json"}, true, true},
		"the first is removed": {[]string{"standby/store.json", "node-0/store.json"}, true, true},
	} {
		dir := t.TempDir()
		for _, file := range c.files {
			path := filepath.Join(dir, file)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if replicated, exists := pairReplicated(dir), hasPairStore(dir); replicated != c.replicated || exists != c.exists {
			t.Errorf("%s: replicated %v, written with --standby %v", name, replicated, exists)
		}
		up := localCluster{cmd: &Up{}, data: dir}
		if err := up.checkStore(); (err != nil) != c.exists {
			t.Errorf("%s, without --standby: %v", name, err)
		}
	}
}
