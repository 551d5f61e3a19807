package model

import (
	"maps"
	"slices"
)

// architecture is what one family of checkpoints adds to the shared sizes. It
// fits in one file, which registers it.
type architecture struct {
	Name string // as in config.json's "architectures"

	// defaults are sizes that published checkpoints leave to the family's configuration
	// class; nil: none.
	defaults map[string]string

	// read takes the rest of config.json into c, and refuses by f.fail what the
	// family could say but nothing here computes.
	read func(f *fields, c *Config)

	// layer is one layer in full.
	layer func(c *Config, i int) LayerSpec

	// extra says whether a tensor that is not in the list may be there, because
	// ignoring it changes nothing.
	extra func(name string) bool

	// beyond is extra for what depends on the config; nil: nothing more.
	beyond func(c *Config, name string) bool
}

var registry = map[string]architecture{}

func register(a architecture) {
	if _, ok := registry[a.Name]; ok {
		panic("model: architecture " + a.Name + " is registered twice")
	}
	registry[a.Name] = a
}

func lookup(name string) (architecture, bool) {
	a, ok := registry[name]
	return a, ok
}

// Architectures lists the names that Open understands, sorted.
func Architectures() []string {
	return slices.Sorted(maps.Keys(registry))
}
