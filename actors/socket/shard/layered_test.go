package shard

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/layered"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// In each model whose prompts can be read layer by layer, the layers of the caches are all layers in order. A layer with a
// cache is among those of that cache, and reads the norm of no layer before them.
func TestLayered(t *testing.T) {
	const data = "../../../internal/engine/model/testdata"
	list, err := os.ReadDir(data)
	if err != nil {
		t.Fatal(err)
	}
	swiftKV, recurrent, refused := 0, 0, 0
	for _, entry := range list {
		if _, err := os.Stat(filepath.Join(data, entry.Name(), "config.json")); err != nil {
			continue
		}
		ck, err := checkpoint.Open(filepath.Join(data, entry.Name()))
		if err != nil {
			t.Fatal(err)
		}
		c := &ck.Config
		switch {
		case !Layered(c):
			refused++
		case c.SwiftKV.Layers > 0:
			swiftKV++
		case c.RecurrentLayers() > 0:
			recurrent++
		}
		next, g := 0, GeometryOf(c, tensor.BF16)
		s := layered.Shape{Group: 1, Layers: g.Layers, Begins: g.Begins, Later: g.Later}
		for cache, to := 0, 0; Layered(c) && cache < g.Layers; cache = to {
			to = s.To(cache)
			first, end := c.FirstLayer(cache), c.FirstLayer(to)
			if first != next || end <= first || c.Layer(first).SameNorm {
				t.Errorf("%s: cache %d has the layers [%d,%d) after %d", entry.Name(), cache, first, end, next)
			}
			for i := first; i < end; i++ {
				if !c.Recurrent(i) && c.CacheOf(i) != cache {
					t.Errorf("%s: layer %d of cache %d has cache %d", entry.Name(), i, cache, c.CacheOf(i))
				}
			}
			next = end
		}
		if Layered(c) && next != c.Layers {
			t.Errorf("%s: %d of %d layers", entry.Name(), next, c.Layers)
		}
		_ = ck.Close()
	}
	if swiftKV == 0 || recurrent == 0 || refused == 0 {
		t.Errorf("%d models with SwiftKV, %d with recurrent states, %d refused: the test needs all", swiftKV, recurrent, refused)
	}
}
