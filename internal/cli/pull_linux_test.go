package cli

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
)

// bytesRead returns the bytes that this process has read from files and connections.
func bytesRead(t *testing.T) (n int64) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/io")
	if err != nil {
		t.Skip(err)
	}
	if _, err := fmt.Sscanf(string(text), "rchar: %d", &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestPullReadsWeightsOnce opens a model after a pull. The digests of its weights are known, so Open
// does not read its 30 MiB.
func TestPullReadsWeightsOnce(t *testing.T) {
	isolateCaches(t)
	hubOf(t, "../../models/fry")
	status, stdout, stderr := shoal(t, "pull", "org/fry")
	if status != 0 {
		t.Fatalf("pull: %d, %s", status, stderr)
	}
	_, path, _ := strings.Cut(strings.TrimSpace(stdout), " is in ")
	before := bytesRead(t)
	pulled, err := checkpoint.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer pulled.Close()
	if n := bytesRead(t) - before; n > 1<<20 {
		t.Errorf("Open read %d bytes", n)
	}
	local, err := checkpoint.Open("../../models/fry")
	if err != nil {
		t.Fatal(err)
	}
	defer local.Close()
	if pulled.Hash() != local.Hash() {
		t.Errorf("the hash is %s, want %s", pulled.Hash(), local.Hash())
	}
}
