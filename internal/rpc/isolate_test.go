package rpc

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

const isolatedEnv = "SHOAL_RPC_TEST_ISOLATED"

var raceEnabled bool

// isolate runs the calling test in its own process if the race detector is on. A second System in
// one process, even after the first was closed, sets grpc's global logger while grpc's goroutines
// may read it (see the package comment). It reports whether the caller should continue.
func isolate(t testing.TB) bool {
	t.Helper()
	if !raceEnabled || os.Getenv(isolatedEnv) != "" {
		return true
	}
	pattern := "^" + strings.ReplaceAll(t.Name(), "/", "$/^") + "$"
	cmd := exec.Command(os.Args[0], "-test.run="+pattern, "-test.timeout=5m")
	cmd.Env = append(os.Environ(), isolatedEnv+"=1", "GORACE=atexit_sleep_ms=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("in its own process: %v\n%s", err, out)
	}
	return false
}
