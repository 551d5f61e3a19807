package socket

import (
	"path/filepath"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// TestBundledGoldens: the bundled checkpoint gives the logits and the 40
// greedy tokens that transformers gives (its goldens.json, by
// train/finish.py), prompts of 1024 tokens among them.
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
