package model

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/wire/wiretest"
)

// TestWire records what checkpoints are identified by. Nodes and coordinator compare it, so
// builds that compute it differently refuse each other whatever they serve.
func TestWire(t *testing.T) {
	var out strings.Builder
	for _, name := range []string{"llama", "gemma3", "mixtral", "deepseek_v2", "phi3"} {
		ck, err := Open(filepath.Join("testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&out, "%s %s\n", name, ck.Hash())
		ck.Close()
	}
	wiretest.Check(t, wiretest.Form{Name: "identities", Text: out.String()})
}
