package model

// Widths that differ between layers: KV heads, the caches they are stored in, and the FFN.

// KVShape is the number of KV heads of a layer, and their width, which queries share.
type KVShape struct{ Heads, Dim int }

// GlobalKV returns the shape of the layers without a window.
func (c *Config) GlobalKV() KVShape {
	if c.Global.Dim > 0 {
		return c.Global
	}
	return KVShape{c.KVHeads, c.HeadDim}
}

// KVOf returns the shape of a layer.
func (c *Config) KVOf(layer int) KVShape {
	if c.Window(layer) > 0 {
		return KVShape{c.KVHeads, c.HeadDim}
	}
	return c.GlobalKV()
}

// FFNOf returns the width of a layer's feed-forward network.
func (c *Config) FFNOf(layer int) int {
	if c.WideFFN && c.Borrows(layer) {
		return 2 * c.FFN
	}
	return c.FFN
}

// KVUnits returns the greatest common divisor of the layers' numbers of KV heads. In prefill, nodes divide
// the KV heads of every layer as this number of equal runs.
func (c *Config) KVUnits() int { return gcd(c.KVHeads, c.GlobalKV().Heads) }

// UnitDim returns the greatest common divisor of the widths of heads.
func (c *Config) UnitDim() int { return gcd(c.HeadDim, c.GlobalKV().Dim) }

func gcd(a, b int) int {
	for b > 0 {
		a, b = b, a%b
	}
	return a
}

// Borrows reports whether a layer reads the cache of an earlier one of its kind.
func (c *Config) Borrows(layer int) bool { return c.OwnKV > 0 && layer >= c.OwnKV }

// KVOwner returns the layer whose keys and values a layer reads. A layer after the first OwnKV reads those
// of the last of them that is of its kind: with a window, or without. It is -1 if none is. Any other
// layer reads its own.
func (c *Config) KVOwner(layer int) int {
	if !c.Borrows(layer) {
		return layer
	}
	for i := c.OwnKV - 1; i >= 0; i-- {
		if (c.Window(i) > 0) == (c.Window(layer) > 0) {
			return i
		}
	}
	return -1
}

// Lends reports whether a later layer reads the keys and values of this one.
func (c *Config) Lends(layer int) bool {
	for i := c.OwnKV; c.OwnKV > 0 && i < c.Layers; i++ {
		if c.KVOwner(i) == layer {
			return true
		}
	}
	return false
}

// CachesOf returns the number of caches of a layer. Every cache has KVUnits heads. Head h of the layer is
// head h/CachesOf of its cache number h%CachesOf. So a run of units is the same run of heads in every
// cache.
func (c *Config) CachesOf(layer int) int {
	if c.Latent.Rank > 0 {
		return 1
	}
	return c.KVOf(layer).Heads / c.KVUnits()
}

// CacheWindows returns the window of each cache; nil: none has one.
func (c *Config) CacheWindows() []int {
	if c.Windows == nil || c.CacheLayers() == c.Layers && c.Global.Dim == 0 {
		return c.Windows
	}
	var windows []int
	for i := range c.Layers {
		if c.Borrows(i) {
			break
		}
		for range c.CachesOf(i) {
			windows = append(windows, c.Windows[i])
		}
	}
	return windows
}

// SharesCaches reports whether several layers read one cache.
func (c *Config) SharesCaches() bool {
	return c.OwnKV > 0 || c.SwiftKV.Layers > 0 && c.SwiftKV.Group > 1
}

// CacheHeads returns the number of heads of every cache.
func (c *Config) CacheHeads() int {
	if c.Latent.Rank > 0 {
		return 1
	}
	return c.KVUnits()
}

// CacheElements returns the number of elements of keys and values that a token has in all caches.
func (c *Config) CacheElements() (n int64) {
	heads, key, value := c.CacheRow()
	switch {
	case c.Latent.Rank > 0:
		return int64(c.CacheLayers()) * int64(key) // the value is part of the key
	case c.Global.Dim == 0:
		return int64(c.CacheLayers()) * int64(heads) * int64(key+value)
	}
	for i := range c.Layers {
		if s := c.KVOf(i); !c.Borrows(i) {
			n += 2 * int64(s.Heads) * int64(s.Dim)
		}
	}
	return n
}
