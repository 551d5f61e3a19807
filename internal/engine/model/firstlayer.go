package model

// FirstLayer returns the first layer of a cache: the layers of one are those that read it, and the recurrent layers
// before them. For the number of caches it returns that of layers. No layer has several caches, and only
// neighbours share one.
func (c *Config) FirstLayer(cache int) int {
	switch s := &c.SwiftKV; {
	case cache == 0:
		return 0
	case cache == c.CacheLayers():
		return c.Layers
	case c.RecurrentLayers() > 0:
		return c.Delta.Full[cache-1] + 1
	case s.Layers > 0 && cache > s.Layers:
		return s.Layers + (cache-s.Layers)*s.Group
	}
	return cache
}
