package launch

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestStoreOfTheOtherSetting checks that `up` refuses a data directory whose store it would ignore.
func TestStoreOfTheOtherSetting(t *testing.T) {
	for _, c := range []struct {
		file    string
		standby bool
		want    string
	}{
		{"jetstream/jetstream", true, "without --standby"},
		{"jetstream/jetstream", false, ""},
		{firstCoordinator + "/store.json", false, "`shoal up --standby`"},
		{firstCoordinator + "/store.json", true, ""},
		{"lock", true, ""},
	} {
		data := t.TempDir()
		at := filepath.Join(data, c.file)
		if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		err := (&localCluster{cmd: &Up{Standby: c.standby}, data: data}).checkStore()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s, --standby %v: %v", c.file, c.standby, err)
		}
	}
}
