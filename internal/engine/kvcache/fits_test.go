package kvcache

import (
	"errors"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Keys that are normalised after their rotation cannot be rotated to positions in the cache.
func TestPositionsInTheCacheAreRefused(t *testing.T) {
	p := new(Policy).AtCachePositions(false)
	g := Geometry{Layers: 1, KVHeads: 2, Layout: tensor.KVLayout{Type: tensor.BF16, KDim: 64, VDim: 64}}
	if err := g.Fits(p); err != nil {
		t.Error(err)
	}
	g.Unturned = true
	if err := g.Fits(p); !errors.Is(err, ErrPolicy) || !strings.Contains(err.Error(), "positions=cache") {
		t.Errorf("got %v", err)
	}
	if err := g.Fits(new(Policy)); err != nil {
		t.Error(err)
	}
}
