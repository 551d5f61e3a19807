package model

import "slices"

// ReadWindows reads which layers have a sliding window: those named by layer_types, otherwise those
// chosen by slides.
func ReadWindows(f *Fields, c *Config, def int, slides func(layer int) bool) {
	ReadSpans(f, c, "sliding_attention", "sliding_window", def, slides)
}

// ReadSpans is ReadWindows for layers of another kind, whose size has another key. A size of null is an
// error if a layer has a window; def is only the size that is missing.
func ReadSpans(f *Fields, c *Config, kind, size string, def int, slides func(layer int) bool) {
	var kinds []string // one per layer
	if f.Get("layer_types", &kinds, "a list of names") {
		if len(kinds) != c.Layers {
			f.Fail("layer_types", ErrFormat, "%d entries for %d layers", len(kinds), c.Layers)
			return
		}
		for i, k := range kinds {
			if k != kind && k != "full_attention" {
				f.Refuse("layer_types", "layer %d: %q is not supported; known: full_attention, %s", i, Clip(k), kind)
				return
			}
		}
		slides = func(layer int) bool { return kinds[layer] == kind }
	}
	windows, some := make([]int, c.Layers), false
	for i := range windows {
		if slides(i) {
			if f.Given(size) && !f.Has(size) {
				f.Fail(size, ErrFormat, "null, but layer %d has a window", i)
				return
			}
			windows[i], some = f.Size(size, def, MaxPositions), true
		}
	}
	if some {
		c.Windows = windows
	}
}

// DropIdleWindows removes windows without effect, which are as long as the context.
func (c *Config) DropIdleWindows() {
	if c.Windows != nil && slices.Max(c.Windows) >= c.MaxPositions {
		c.Windows = nil
	}
}

// Window returns the sliding window of a layer in tokens, the newest included: position i attends to
// positions i-Window+1 to i, or with Chunked from the last multiple of Window on. 0: to all positions.
func (c *Config) Window(layer int) int {
	if c.Windows == nil {
		return 0
	}
	return c.Windows[layer]
}
