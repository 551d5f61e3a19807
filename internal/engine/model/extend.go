package model

import (
	"fmt"
	"github.com/shoal-llm/shoal/internal/engine/model/rotary"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/model/tinyconfig"
)

// Family describes an architecture of another package, which registers it in its init function.
type Family struct {
	Name     string
	Defaults map[string]string // see architecture
	Aliases  map[string]string // a key of config.json, then its older name

	Read   func(f *Fields, c *Config)
	Layer  func(c *Config, i int) LayerSpec
	Extra  func(name string) bool
	Rename func(c *Config, name string) string // of tensors
	Tiny   map[string]any                      // settings of tinyconfig.Of
}

// Register adds a family.
func Register(f Family) {
	register(architecture{Name: f.Name, defaults: f.Defaults, aliases: f.Aliases, read: f.Read, layer: f.Layer, extra: f.Extra, rename: f.Rename})
	tinyconfig.Add(f.Name, f.Tiny)
}

// Fields are the settings of a config.json.
type Fields = fields

// Has reports whether a key is there and not null; Drop removes it.
func (f *fields) Has(key string) bool { return f.has(key) }
func (f *fields) Drop(key string)     { delete(f.raw, key) }

// Refuse fails because a setting is not implemented.
func (f *fields) Refuse(key, format string, args ...any) {
	f.fail(key, ErrUnsupported, format, args...)
}

// ReadActivation refuses any function except want.
func (f *fields) ReadActivation(key, want string) { f.activation(key, want) }

// MustBe refuses any value except want.
func (f *fields) MustBe(key string, want bool) { f.must(key, want) }

// ReadRotations reads rotary positions by kind of layer, or one base for all. full and local are
// the defaults of layers without a window and with one; local 0: all have the same.
func (f *fields) ReadRotations(c *Config, full, local float64) {
	if local == 0 {
		readRope(f, c, full)
	} else if !f.readRopes(c, full, local) {
		readRope(f, c, full)
		c.LocalRope = rotary.Rope{Theta: local}
	}
}

// ReadWindows reads the windows of layers of kind sliding_attention, whose size has the key size.
func (f *fields) ReadWindows(c *Config, size string, def int, slides func(layer int) bool) {
	readSpans(f, c, "sliding_attention", size, def, slides)
}

// DecoderLayer is the layer of a Llama, from which families differ.
func DecoderLayer(c *Config, i int) LayerSpec { return llamaLayer(c, i) }

// Projection is a projection under the name of its module.
func Projection(module string, bias bool) Linear { return linear(module, bias) }

// The largest settings.
const (
	MaxLayers = maxLayers
	MaxVocab  = maxVocab
	MaxTheta  = maxTheta
)

// splitQKV gives q, k and v a tensor each, where the files have one for all and the layers want three.
func (c *Checkpoint) splitQKV() error {
	q, kv := c.Config.Heads*c.Config.HeadDim, c.Config.KVHeads*c.Config.HeadDim
	for i := range c.Config.Layers {
		p := fmt.Sprintf("model.layers.%d.self_attn.", i)
		all, ok := c.at[p+"qkv_proj.weight"]
		if !ok || c.Config.Layer(i).Q.Weight == all.Name {
			continue
		}
		if want := []int{q + 2*kv, c.Config.Hidden}; !slices.Equal(all.Shape, want) {
			return &Error{File: all.path, Tensor: all.Name, Kind: ErrMismatch, Detail: fmt.Sprintf("has shape %v; queries, keys and values want %v", all.Shape, want)}
		}
		delete(c.at, all.Name)
		all.Shape = append([]int{1}, all.Shape...)
		first := 0
		for _, part := range []struct {
			name string
			rows int
		}{{"q_proj", q}, {"k_proj", kv}, {"v_proj", kv}} {
			if err := c.add(all.matrix(p+part.name+".weight", 0, first, 1, part.rows, false)); err != nil {
				return err
			}
			first += part.rows
		}
	}
	return nil
}
