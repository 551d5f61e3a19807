package socket

import (
	"bytes"
	"path/filepath"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/model/modeltest"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// TestFP8 serves a checkpoint in FP8 blocks and one with the same numbers in F32. Both must give
// the same bits, although the blocks do not align with the sockets' slices.
func TestFP8(t *testing.T) {
	ck, err := model.Open(filepath.Join(modelData, "mixtral"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	quantised, plain := filepath.Join(dir, "q"), filepath.Join(dir, "p")
	if err := modeltest.FP8(ck, 48, 24, quantised, plain); err != nil {
		t.Fatal(err)
	}
	if err := ck.Close(); err != nil {
		t.Fatal(err)
	}
	want, got := mixed("full")[:4], mixed("full")[:4]
	newRig(t, rigConfig{dir: plain, sockets: 1, mapping: topology.Gather, kv: tensor.F32}).generate(64, want...)
	newRig(t, rigConfig{dir: quantised, sockets: 3, mapping: topology.Reduce, kv: tensor.F32}).generate(64, got...)
	if !bytes.Equal(bits(t, got), bits(t, want)) {
		t.Error("FP8 weights and the same numbers in F32 give different results")
	}
}
