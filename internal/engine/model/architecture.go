package model

import (
	"maps"
	"slices"
)

// architecture is what one family of checkpoints adds to the shared sizes. Each has one file, which
// registers it.
type architecture struct {
	Name string // as in config.json's "architectures"

	// defaults are sizes that published checkpoints leave to the family's configuration class; nil:
	// none.
	defaults map[string]string

	// aliases are other names of keys: a key, then its older name.
	aliases map[string]string

	// rename returns the name in this package of a tensor of the family's files; nil: the same.
	rename func(c *Config, name string) string

	// read reads the rest of config.json into c. It refuses by f.fail every setting of the family
	// that is not implemented.
	read func(f *fields, c *Config)

	// layer returns the spec of one layer.
	layer func(c *Config, i int) LayerSpec

	// latent means that read sets HeadDim from the widths of latent attention.
	latent bool

	// rotary names the settings of rotary positions that read implements, of those that are
	// otherwise refused: see refuseRotary.
	rotary []string

	// take gives the tensors of a folder the names and the form of the specs; nil: they have them.
	take func(c *Checkpoint) error

	// extra reports whether a tensor outside of the list may be present, because ignoring it
	// changes nothing.
	extra func(name string) bool

	// beyond is like extra, but may depend on the config; nil: no further tensors.
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

// Architectures lists the supported names, sorted.
func Architectures() []string {
	return slices.Sorted(maps.Keys(registry))
}
