package cluster

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestWrongFlagsTouchNothing: a coordinator that cannot serve says so before it takes a
// lease or writes a store.
func TestWrongFlagsTouchNothing(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	c, err := StartCoordinator(t.Context(), CoordinatorConfig{DataDir: data, Serve: ServeConfig{Model: goldenDir, Policy: "lru", Logger: slog.New(slog.DiscardHandler)}})
	if err == nil {
		c.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "--policy") {
		t.Error(err)
	}
	if _, err := os.Stat(data); !os.IsNotExist(err) {
		t.Errorf("%s: %v", data, err)
	}
}

// TestNodeConfig: what a node is told of its coordinator must be an address.
func TestNodeConfig(t *testing.T) {
	for join, good := range map[string]bool{"10.0.0.2:7070": true, "[::1]:7070": true, "host:7070": true, "host": false, "http://host": false, "": false} {
		c := NodeConfig{Join: []string{join}}
		c.ensureDefaults()
		if err := c.Validate(); (err == nil) != good {
			t.Errorf("%q: %v", join, err)
		}
	}
}
