package cluster

import (
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/bus"
	"github.com/shoal-llm/shoal/internal/engine/speculate"
	"github.com/shoal-llm/shoal/internal/security"
)

// TestWrongFlagsTouchNothing: a coordinator with invalid settings fails before it takes a lease or
// writes a store.
func TestWrongFlagsTouchNothing(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	c, err := StartCoordinator(t.Context(), CoordinatorConfig{
		Process: Process{DataDir: data, Insecure: true},
		Serve:   ServeConfig{Model: goldenDir, Policy: "lru", Logger: slog.New(slog.DiscardHandler)},
	})
	if err == nil {
		c.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "policy: ") {
		t.Error(err)
	}
	if _, err := os.Stat(data); !os.IsNotExist(err) {
		t.Errorf("%s: %v", data, err)
	}
}

// TestNodeConfig: join must be an address, and limits must be valid numbers.
func TestNodeConfig(t *testing.T) {
	for join, good := range map[string]bool{"10.0.0.2:7070": true, "[::1]:7070": true, "host:7070": true,
		"host": false, "http://host": false, "host:70700": false, "host:-1": false, "": false, "[fd00::1]:7070": true,
		"[fe80::1]:7070": false, "[fe80::1%eth0]:7070": false, "fd00::1:7070": false} {
		c := NodeConfig{Process: Process{Join: []string{join}, Insecure: true}}
		c.ensureDefaults()
		if err := c.Validate(); (err == nil) != good {
			t.Errorf("%q: %v", join, err)
		}
	}
	for want, change := range map[string]func(c *NodeConfig){
		"join HOST:PORT":                       func(c *NodeConfig) { c.Join = nil },
		"kv-memory -1":                         func(c *NodeConfig) { c.KVMemory = -1 },
		"threads -1":                           func(c *NodeConfig) { c.Threads = -1 },
		"share -1":                             func(c *NodeConfig) { c.Share = -1 },
		"share NaN":                            func(c *NodeConfig) { c.Share = math.NaN() },
		"share +Inf":                           func(c *NodeConfig) { c.Share = math.Inf(1) },
		"every address of this machine":        func(c *NodeConfig) { c.Bind, c.Key = "0.0.0.0:7070", security.NewKey() },
		"fe80::1%eth0 is a link-local address": func(c *NodeConfig) { c.Bind, c.Key = "[fe80::1%eth0]:7070", security.NewKey() },
		"is neither an IP address nor a host name": func(c *NodeConfig) { c.Bind, c.Key = "node 1:7070", security.NewKey() },
		"no cluster key": func(*NodeConfig) {},
	} {
		c := NodeConfig{Process: Process{Join: []string{"host:7070"}}}
		change(&c)
		c.ensureDefaults()
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q: %v", want, err)
		}
	}
}

// TestOptionsMatchTheirConstants checks the bounds that the table repeats from other packages.
func TestOptionsMatchTheirConstants(t *testing.T) {
	for field, want := range map[string]string{
		"DecodeSteps": fmt.Sprintf("1..%d", 1+speculate.MaxDraft),
		"Chunk":       fmt.Sprintf("1..%d", 1<<16),
	} {
		f, ok := reflect.TypeFor[ServeConfig]().FieldByName(field)
		if got := f.Tag.Get("range"); !ok || got != want {
			t.Errorf("%s has the range %q, want %q", field, got, want)
		}
	}
	f, _ := reflect.TypeFor[Process]().FieldByName("Ports")
	if got, want := f.Tag.Get("range"), fmt.Sprintf("1..%d", 65536-bus.PortCount); got != want {
		t.Errorf("ports have the range %q, want %q", got, want)
	}
}
