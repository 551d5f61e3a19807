package snapshots

import (
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/states"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// TestAt checks the places where snapshots are kept: at multiples of the stride, where an earlier text left
// the prompt's, and at the end of the last block that another prompt can reuse.
func TestAt(t *testing.T) {
	g := kvcache.Geometry{Layers: 1, KVHeads: 4, Layout: tensor.KVLayout{Type: tensor.BF16, KDim: 8, VDim: 8}}
	if At(&g, kvcache.Full(), 1000, 0, 0) != 0 {
		t.Error("a model without recurrent states has snapshots")
	}
	g.Recurrent = states.Shape{Layers: 2, KeyHeads: 4, ValueHeads: 8, KeyDim: 4, ValueDim: 16, Taps: 2}
	large := g
	large.Recurrent.KeyDim, large.Recurrent.ValueDim = 256, 256
	if Stride(&g) != minStride || Stride(&large) != maxStride {
		t.Errorf("strides %d and %d", Stride(&g), Stride(&large))
	}
	for _, c := range []struct{ prompt, from, branch, want int }{
		{64, 0, 0, 0}, {65, 0, 0, 64}, {300, 0, 0, 256}, {300, 256, 0, 0}, {400, 256, 0, 384}, {400, 0, 192, 192},
		{400, 192, 192, 256}, {2000, 256, 1024, 512}, {400, 0, 384, 256},
	} {
		if got := At(&g, kvcache.Full(), c.prompt, c.from, c.branch); got != c.want {
			t.Errorf("prompt of %d, after %d, branch at %d: %d, want %d", c.prompt, c.from, c.branch, got, c.want)
		}
	}
}
