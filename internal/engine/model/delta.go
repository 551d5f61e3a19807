package model

import (
	"maps"
	"slices"
	"strings"

	"github.com/shoal-llm/shoal/internal/engine/model/recurrent"
)

// DeltaSpec names the tensors of a linear layer. The rows of In are used in the order of key heads:
// q, k, v and z of the first, then those of the next. Those of Gates are b, then a. InRow and GateRow say
// where a file has them.
type DeltaSpec struct {
	QKV, Z Linear // (2*keys + values, hidden) q, then k, then v; (values, hidden)
	B, A   Linear // (value heads, hidden)
	Joint  Linear // instead of QKV and Z: the rows of In
	BA     Linear // instead of B and A: b, then a of each key head's value heads
	Conv   string // (2*keys + values, 1, Taps), channels as the rows of QKV
	DtBias string // (value heads)
	ALog   string // (value heads)
	Norm   string // (ValueDim); Mamba2: (values)
	Out    Linear // (hidden, values)

	ConvBias string // of Conv's channels; ConvBias only
	D        string // (value heads): recurrent.Mamba2
}

// InRow is the projection that holds row r of In, and its row there.
func (s *DeltaSpec) InRow(d *recurrent.Mixer, r int) (Linear, int) {
	switch {
	case d.Kind != recurrent.GatedDelta:
		return s.Joint, d.JointRow(r)
	case s.Joint.Weight != "":
		return s.Joint, r
	}
	head, at := r/d.Width(), r%d.Width()
	if at >= d.Channels() {
		return s.Z, head*(d.Width()-d.Channels()) + at - d.Channels()
	}
	return s.QKV, d.Channel(head*d.Channels() + at)
}

// GateRow is the projection that holds row r of Gates, and its row there.
func (s *DeltaSpec) GateRow(d *recurrent.Mixer, r int) (Linear, int) {
	if d.Kind == recurrent.Mamba2 {
		return s.Joint, d.Values() + d.StoredChannels() + r
	}
	second, head := r/d.ValueHeads, r%d.ValueHeads
	if s.BA.Weight != "" {
		group := d.ValueHeads / d.KeyHeads
		return s.BA, (head/group*2+second)*group + head%group
	}
	if second > 0 {
		return s.A, head
	}
	return s.B, head
}

// delta lists the tensors of a linear layer.
func (s *specs) delta(c *Config, l *DeltaSpec) {
	d := &c.Delta
	if d.Kind != recurrent.GatedDelta {
		s.joint(c, l)
		return
	}
	s.linear(l.Joint, 2*d.Keys()+2*d.Values(), c.Hidden)
	s.linear(l.BA, 2*d.ValueHeads, c.Hidden)
	s.linear(l.QKV, 2*d.Keys()+d.Values(), c.Hidden)
	s.linear(l.Z, d.Values(), c.Hidden)
	s.linear(l.B, d.ValueHeads, c.Hidden)
	s.linear(l.A, d.ValueHeads, c.Hidden)
	s.add(l.Conv, 2*d.Keys()+d.Values(), 1, d.Taps)
	s.add(l.DtBias, d.ValueHeads)
	s.add(l.ALog, d.ValueHeads)
	s.add(l.Norm, d.ValueDim)
	s.linear(l.Out, c.Hidden, d.Values())
}

// Recurrent reports whether a layer has a mixer with a state instead of attention.
func (c *Config) Recurrent(layer int) bool {
	return c.Delta.KeyHeads > 0 && !slices.Contains(c.Delta.Full, layer)
}

// RecurrentLayers is the number of these layers.
func (c *Config) RecurrentLayers() int {
	if c.Delta.KeyHeads == 0 {
		return 0
	}
	return c.Layers - len(c.Delta.Full)
}

// before is the number of layers before layer i that are, or are not, recurrent.
func (c *Config) before(i int, recurrent bool) (n int) {
	for j := range i {
		if c.Recurrent(j) == recurrent {
			n++
		}
	}
	return n
}

// Limits of the gated delta rule, several times the largest published.
const (
	maxTaps       = 16
	maxDeltaWidth = 1 << 22 // of all rows of In
)

// readDelta reads the sizes of linear layers and the list of layers with attention.
func readDelta(f *fields, c *Config) {
	d := &c.Delta
	d.KeyHeads = f.Size("linear_num_key_heads", 16, maxHeads)
	d.ValueHeads = f.Size("linear_num_value_heads", 32, maxHeads)
	d.KeyDim = f.Size("linear_key_head_dim", 128, maxHeadDim)
	d.ValueDim = f.Size("linear_value_head_dim", 128, maxHeadDim)
	d.Taps = f.Size("linear_conv_kernel_dim", 4, maxTaps)
	key := "full_attention_interval"
	interval := f.Size(key, 4, maxLayers)
	full := func(i int) bool { return (i+1)%interval == 0 }
	if kinds := f.layerKinds("layer_types", c.Layers, map[string]string{"linear_attention": linearKind, "full_attention": fullKind}); kinds != nil {
		key, full = "layer_types", func(i int) bool { return kinds[i] == fullKind }
	}
	if f.err == nil && d.ValueHeads%d.KeyHeads != 0 {
		f.fail("linear_num_value_heads", ErrFormat, "%d is not a multiple of the %d key heads", d.ValueHeads, d.KeyHeads)
		return
	}
	c.checkMixer(f, key, full)
}

// The kinds of layers that layerKinds returns.
const (
	fullKind   = "full"
	linearKind = "linear"
)

// layerKinds reads a list with the kind of each layer, in the names of a family; nil: there is none, or
// it is wrong.
func (f *fields) layerKinds(key string, layers int, names map[string]string) []string {
	var kinds []string
	if !f.get(key, &kinds, "a list of names") {
		return nil
	}
	if len(kinds) != layers {
		f.fail(key, ErrFormat, "%d entries for %d layers", len(kinds), layers)
		return nil
	}
	for i, k := range kinds {
		if kinds[i] = names[k]; kinds[i] == "" {
			f.fail(key, ErrUnsupported, "layer %d: %q is not supported; known: %s", i, clip(k), strings.Join(slices.Sorted(maps.Keys(names)), ", "))
			return nil
		}
	}
	return kinds
}

// checkMixer sets the layers with attention and checks the sizes of the others. key names the setting
// that lists the layers.
func (c *Config) checkMixer(f *fields, key string, full func(i int) bool) {
	d := &c.Delta
	for i := range c.Layers {
		if full(i) {
			d.Full = append(d.Full, i)
		}
	}
	switch {
	case f.err != nil:
	case d.KeyHeads*d.Width() > maxDeltaWidth:
		f.fail(key, ErrOutOfRange, "the projection of a layer with a state has %d rows, more than %d", d.KeyHeads*d.Width(), maxDeltaWidth)
	case len(d.Full) == 0:
		f.fail(key, ErrUnsupported, "none of the %d layers has attention; at least one must", c.Layers)
	case len(d.Full) == c.Layers:
		*d = recurrent.Mixer{}
	}
}

// linearLayer replaces the attention of a layer. p is the prefix of its names.
func linearLayer(l *LayerSpec, p string) {
	p += "linear_attn."
	l.Q, l.K, l.V, l.QNorm, l.KNorm = Linear{}, Linear{}, Linear{}, "", ""
	l.O = Linear{}
	l.Delta = &DeltaSpec{
		QKV: linear(p+"in_proj_qkv", false), Z: linear(p+"in_proj_z", false), B: linear(p+"in_proj_b", false), A: linear(p+"in_proj_a", false),
		Conv: p + "conv1d.weight", DtBias: p + "dt_bias", ALog: p + "A_log", Norm: p + "norm.weight", Out: linear(p+"out_proj", false),
	}
}

// gatedQuery divides the query projection: the rows of each head are its query, then its output
// gate.
func (c *Config) gatedQuery(l *LayerSpec) {
	l.Q.Of, l.Q.Run, l.Q.Gap = 2*c.Heads*c.HeadDim, c.HeadDim, c.HeadDim
	l.QGate = l.Q
	l.QGate.First, l.QGate.Order = c.HeadDim, Order{}
}

// slot is the number of the cache, or of the recurrent state, of a layer.
func (c *Config) slot(layer int) int { return c.before(layer, c.Recurrent(layer)) }
