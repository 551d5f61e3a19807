package socket

import (
	"path/filepath"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// TestBundledGoldens checks that the bundled checkpoint gives the logits and the 40 greedy tokens of
// transformers (its goldens.json, by train/finish.py), including prompts of 1024 tokens.
func TestBundledGoldens(t *testing.T) {
	if testing.Short() {
		t.Skip("some seconds")
	}
	for _, name := range []string{"fry", "dace"} {
		dir := filepath.Join("../../models", name)
		t.Run(name, func(t *testing.T) {
			testGoldens(t, readGoldens(t, dir), rigConfig{dir: dir, sockets: 3, mapping: topology.Reduce, kv: tensor.F32})
		})
	}
}
