package model

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// SwiftKV (arXiv 2410.03960) rewires the later layers of a decoder. With x the input of the first
// of them, layer L:
//
//	s = RMSNorm(x, NormSwiftKV)                           one for all later layers (SingleInputKV)
//	k, v = K s, V s                                       of the first of every Group layers, whose
//	                                                      cache the others read (AcrossKV)
//	q = Q RMSNorm(h, AttnNorm)                            of each layer, h its own input
//
// So a token whose output is not needed has its keys and values in every cache after layer L-1, and
// leaves the step there.
type SwiftKV struct {
	Layers int // L: the number of first layers with their own keys and values; 0: all
	Group  int // number of neighbouring later layers that share a cache; 1: none share
}

// NormSwiftKV is the norm from which the keys and values of all later layers are computed.
const NormSwiftKV = "model.norm_swiftkv.weight" // (hidden)

// CacheLayers returns the number of caches.
func (c *Config) CacheLayers() int {
	switch {
	case c.OwnKV > 0:
		return c.CacheOf(c.OwnKV-1) + c.CachesOf(c.OwnKV-1)
	case c.SwiftKV.Layers == 0 && c.Global.Dim == 0:
		return c.Layers - c.RecurrentLayers()
	}
	return c.CacheOf(c.Layers-1) + c.CachesOf(c.Layers-1)
}

// CacheOf returns the number of the first cache that a layer reads, counted from 0. See CachesOf.
// For a recurrent layer it is the number of its state.
func (c *Config) CacheOf(layer int) int {
	s := &c.SwiftKV
	if s.Layers == 0 || layer < s.Layers {
		n := c.slot(layer)
		if c.Global.Dim > 0 || c.OwnKV > 0 {
			n = 0
			for i := range c.KVOwner(layer) {
				n += c.CachesOf(i)
			}
		}
		return n
	}
	return s.Layers + (layer-s.Layers)/s.Group
}

// rewire changes the source of a later layer's queries, keys and values.
func (s *SwiftKV) rewire(l *LayerSpec, i int) {
	if s.Layers == 0 || i < s.Layers {
		return
	}
	l.KVSource = &KVSource{Layer: s.Layers, Norm: NormSwiftKV}
	p := fmt.Sprintf("model.layers.%d.self_attn.", i)
	order := l.Q.Order
	l.Q = Projection(p+"q_proj_swiftkv", l.Q.Bias != "")
	l.Q.Order = order
	if (i-s.Layers)%s.Group > 0 {
		l.K, l.V, l.KNorm = Linear{}, Linear{}, ""
		return
	}
	l.K, l.V = Projection(p+"k_proj_swiftkv", l.K.Bias != ""), Projection(p+"v_proj_swiftkv", l.V.Bias != "")
	l.K.Order = order
}

// Rewirable returns why no layer from L on can be rewired, or "".
func (c *Config) Rewirable() string {
	switch last := c.Layer(c.Layers - 1); {
	case c.Latent.Rank > 0:
		return "latent attention has no key and value projections of its own"
	case c.Windows != nil:
		return "some of its layers have a sliding window"
	case c.OwnKV > 0:
		return "some of its layers read the keys and values of others"
	case c.VNorm || c.VFromK:
		return "its values are normalised, or are its keys"
	case c.Delta.KeyHeads > 0:
		return "some of its layers have a recurrent state"
	case c.Unrotated != nil:
		return "some of its layers have no rotary positions"
	case last.Q.Of > 0:
		return "its queries, keys and values are stored as one matrix"
	case c.Quantized != nil:
		return "its weights are published quantized"
	}
	return ""
}

// ParseSwiftKV parses the setting after the name of a shape: swiftkv=SHARE or swiftkv=SHARE,group=N.
func (c *Config) ParseSwiftKV(text string) (SwiftKV, error) {
	if text == "" {
		return SwiftKV{}, nil
	}
	part, group, grouped := strings.Cut(text, ",group=")
	part, ok := strings.CutPrefix(part, "swiftkv=")
	share, err := strconv.ParseFloat(part, 64)
	s := SwiftKV{Layers: c.Layers - int(math.Round(share*float64(c.Layers))), Group: 1}
	if grouped && err == nil {
		s.Group, err = strconv.Atoi(group)
	}
	if !ok || err != nil || !(share > 0 && share < 1) || s.Layers < 1 || s.Layers >= c.Layers || s.Group < 1 || s.Group > c.Layers {
		return s, fmt.Errorf("%q: want swiftkv=SHARE, part of its %d layers, and perhaps group=N", text, c.Layers)
	}
	if c.Latent.Rank > 0 || c.Windows != nil {
		return s, errors.New("no SwiftKV over latent attention or windows")
	}
	return s, nil
}

// ReadSwiftKV reads the settings under their published names.
func ReadSwiftKV(f *Fields, c *Config) {
	s := SwiftKV{Layers: f.Size("num_key_value_layers", c.Layers, c.Layers), Group: f.Size("key_value_group_size", 1, c.Layers)}
	if s.Layers < c.Layers {
		c.SwiftKV = s
	}
}

// Rewired reports whether a tensor is a projection of the base that a later layer does not read.
func (c *Config) Rewired(name string) bool {
	rest, ok := strings.CutPrefix(name, "model.layers.")
	if !ok || c.SwiftKV.Layers == 0 {
		return false
	}
	number, module, _ := strings.Cut(rest, ".self_attn.")
	i, err := strconv.Atoi(number)
	module, _, _ = strings.Cut(module, ".")
	return err == nil && i >= c.SwiftKV.Layers && i < c.Layers && slices.Contains([]string{"q_proj", "k_proj", "v_proj"}, module)
}
