package model

import "slices"

// CacheBegins returns the first cache of each layer, if some layer has several; otherwise nil.
func (c *Config) CacheBegins() (begins []int) {
	if c.Global.Dim == 0 || c.OwnKV > 0 {
		return nil
	}
	for i := range c.Layers {
		begins = append(begins, c.CacheOf(i))
	}
	return begins
}

// FirstLayer returns the first of the layers that belong to a cache: those that read it, and the recurrent layers before
// them. cache must be the first cache of its layer. For the number of caches it returns the number of layers. Only
// adjacent layers share a cache.
func (c *Config) FirstLayer(cache int) int {
	switch s := &c.SwiftKV; {
	case cache == 0:
		return 0
	case cache == c.CacheLayers():
		return c.Layers
	case c.Global.Dim > 0:
		return slices.Index(c.CacheBegins(), cache)
	case c.RecurrentLayers() > 0:
		return c.Delta.Full[cache-1] + 1
	case s.Layers > 0 && cache > s.Layers:
		return s.Layers + (cache-s.Layers)*s.Group
	}
	return cache
}
