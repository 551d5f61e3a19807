package accelerator

import (
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/model/recurrent"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// A Nemotron-H of attention and FFNs alone has no recurrent state, but FFNs that no kernel computes.
func TestSupportsRefusesBlocks(t *testing.T) {
	c := model.Config{Hidden: 64, Layers: 1, Heads: 2, KVHeads: 1, HeadDim: 32, FFN: 64}
	if err := Supports(&c, tensor.BF16); err != nil {
		t.Fatal(err)
	}
	c.Blocks = []recurrent.Block{{Mix: 0, FFN: 1}}
	if err := Supports(&c, tensor.BF16); err == nil || !strings.Contains(err.Error(), "without a gate") {
		t.Errorf("%v", err)
	}
}
