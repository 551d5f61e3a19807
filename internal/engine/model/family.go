package model

import (
	"maps"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/model/tinyconfig"
)

// Family describes one family of checkpoints, in addition to the shared sizes. Each has a file in package
// families or encoder, which registers it in its init function. Package checkpoint imports both.
type Family struct {
	Name string // as in config.json's "architectures"

	// Defaults are sizes that published checkpoints leave to the family's configuration class; nil:
	// none.
	Defaults map[string]string

	// Aliases are other names of keys: a key, then its older name, or one that transformers also accepts.
	Aliases map[string]string

	// Read reads the rest of config.json into c. It refuses by Fields.Fail every setting of the
	// family that is not implemented.
	Read func(f *Fields, c *Config)

	// Layer returns the spec of one layer; nil: DecoderLayer.
	Layer func(c *Config, i int) LayerSpec

	// Latent means that Read sets HeadDim from the widths of latent attention.
	Latent bool

	// Rotary names the settings of rotary positions that Read implements, of those that are
	// otherwise refused: see RefuseRotary.
	Rotary []string

	// Rename returns the name in the specs of a tensor of the family's files; nil: the same.
	Rename func(c *Config, name string) string

	// Moved lists names of tensors in folders, then their names in the specs.
	Moved map[string]string

	// Alternating means that stacks of experts have rows of gate and up in turn, gate first, and may
	// be published in MXFP4.
	Alternating bool

	// Extra reports whether a tensor outside of the list may be present, because ignoring it
	// changes nothing; nil: DecoderExtra.
	Extra func(name string) bool

	// Beyond is like Extra, but may depend on the config; nil: no further tensors.
	Beyond func(c *Config, name string) bool

	// Tiny has the settings of the architecture's small model, see tinyconfig.Of; nil: they are there.
	Tiny map[string]any
}

var registry = map[string]Family{}

// Register adds a family. It panics if there is one of its name.
func Register(a Family) {
	if _, ok := registry[a.Name]; ok {
		panic("model: architecture " + a.Name + " is registered twice")
	}
	if a.Layer == nil {
		a.Layer = DecoderLayer
	}
	if a.Extra == nil {
		a.Extra = DecoderExtra
	}
	registry[a.Name] = a
	if a.Tiny != nil {
		tinyconfig.Add(a.Name, a.Tiny)
	}
}

// architectureOf has the architecture of each model_type of transformers.
var architectureOf = map[string]string{}

// RegisterNames adds architectures by model_type, and multimodal ones by name.
func RegisterNames(types map[string]string, wrappers map[string]Wrapper) {
	maps.Copy(architectureOf, types)
	maps.Copy(nested, wrappers)
}

// Lookup returns the family of an architecture.
func Lookup(name string) (Family, bool) {
	a, ok := registry[name]
	return a, ok
}

// Architectures lists the supported names, sorted.
func Architectures() []string {
	return slices.Sorted(maps.Keys(registry))
}
