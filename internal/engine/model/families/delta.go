package families

import (
	"maps"
	"slices"
	"strings"

	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/model/recurrent"
)

// readDelta reads the sizes of linear layers and the list of layers with attention.
func readDelta(f *model.Fields, c *model.Config) {
	d := &c.Delta
	d.KeyHeads = f.Size("linear_num_key_heads", 16, model.MaxHeads)
	d.ValueHeads = f.Size("linear_num_value_heads", 32, model.MaxHeads)
	d.KeyDim = f.Size("linear_key_head_dim", 128, model.MaxHeadDim)
	d.ValueDim = f.Size("linear_value_head_dim", 128, model.MaxHeadDim)
	d.Taps = f.Size("linear_conv_kernel_dim", 4, model.MaxTaps)
	key := "full_attention_interval"
	interval := f.Size(key, 4, model.MaxLayers)
	full := func(i int) bool { return (i+1)%interval == 0 }
	if kinds := layerKinds(f, "layer_types", c.Layers,
		map[string]string{"linear_attention": linearKind, "full_attention": fullKind}); kinds != nil {
		key, full = "layer_types", func(i int) bool { return kinds[i] == fullKind }
	}
	if f.Err == nil && d.ValueHeads%d.KeyHeads != 0 {
		f.Fail("linear_num_value_heads", model.ErrFormat, "%d is not a multiple of the %d key heads", d.ValueHeads, d.KeyHeads)
		return
	}
	checkMixer(c, f, key, full)
}

// The kinds of layers that layerKinds returns.
const (
	fullKind   = "full"
	linearKind = "linear"
)

// layerKinds reads a list with the kind of each layer, in the names of a family. It returns nil if there is
// no valid list.
func layerKinds(f *model.Fields, key string, layers int, names map[string]string) []string {
	var kinds []string
	if !f.Get(key, &kinds, "a list of names") {
		return nil
	}
	if len(kinds) != layers {
		f.Fail(key, model.ErrFormat, "%d entries for %d layers", len(kinds), layers)
		return nil
	}
	for i, k := range kinds {
		if kinds[i] = names[k]; kinds[i] == "" {
			f.Refuse(key, "layer %d: %q is not supported; known: %s", i, model.Clip(k), strings.Join(slices.Sorted(maps.Keys(names)), ", "))
			return nil
		}
	}
	return kinds
}

// checkMixer sets the layers with attention and checks the sizes of the others. key names the setting
// that lists the layers.
func checkMixer(c *model.Config, f *model.Fields, key string, full func(i int) bool) {
	d := &c.Delta
	for i := range c.Layers {
		if full(i) {
			d.Full = append(d.Full, i)
		}
	}
	switch {
	case f.Err != nil:
	case d.KeyHeads*d.Width() > model.MaxDeltaWidth:
		f.Fail(key, model.ErrOutOfRange, "the projection of a layer with a state has %d rows, more than %d",
			d.KeyHeads*d.Width(), model.MaxDeltaWidth)
	case len(d.Full) == 0:
		f.Refuse(key, "none of the %d layers has attention; at least one must", c.Layers)
	case len(d.Full) == c.Layers:
		*d = recurrent.Mixer{}
	}
}

// linearLayer replaces the attention of a layer by the gated delta rule. p is the prefix of its names.
func linearLayer(l *model.LayerSpec, p string) {
	p += "linear_attn."
	l.Q, l.K, l.V, l.QNorm, l.KNorm = model.Linear{}, model.Linear{}, model.Linear{}, "", ""
	l.O = model.Linear{}
	l.Delta = &model.DeltaSpec{
		QKV: model.Projection(p+"in_proj_qkv", false), Z: model.Projection(p+"in_proj_z", false), B: model.Projection(p+"in_proj_b", false),
		A:    model.Projection(p+"in_proj_a", false),
		Conv: p + "conv1d.weight", DtBias: p + "dt_bias", ALog: p + "A_log", Norm: p + "norm.weight", Out: model.Projection(p+"out_proj", false),
	}
}

// gatedQuery divides the query projection: the rows of each head are its query, then its output
// gate.
func gatedQuery(c *model.Config, l *model.LayerSpec) {
	l.Q.Of, l.Q.Run, l.Q.Gap = 2*c.Heads*c.HeadDim, c.HeadDim, c.HeadDim
	l.QGate = l.Q
	l.QGate.First, l.QGate.Order = c.HeadDim, model.Order{}
}
