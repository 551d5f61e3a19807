package checkpoint

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/wire/wiretest"
)

// TestWire records the identities of checkpoints. Nodes and coordinator compare them, so builds
// that compute them differently refuse each other.
func TestWire(t *testing.T) {
	var out strings.Builder
	for _, name := range []string{"llama", "gemma3", "mixtral", "deepseek_v2", "phi3"} {
		ck, err := Open(filepath.Join("../model/testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&out, "%s %s\n", name, ck.Hash())
		ck.Close()
	}
	wiretest.Check(t, wiretest.Form{Name: "identities", Text: out.String()})
}
