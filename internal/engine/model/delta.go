package model

import (
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/model/recurrent"
)

// DeltaSpec names the tensors of a linear layer. The rows of In are used in the order of key heads:
// q, k, v and z of the first, then those of the next. Those of Gates are b, then a. InRow and GateRow
// return their places in a file.
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

// InRow returns the projection that holds row r of In, and its row there.
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

// GateRow returns the projection that holds row r of Gates, and its row there.
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

// RecurrentLayers returns the number of these layers.
func (c *Config) RecurrentLayers() int {
	if c.Delta.KeyHeads == 0 {
		return 0
	}
	return c.Layers - len(c.Delta.Full)
}

// before returns the number of layers before layer i that are, or are not, recurrent.
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
	MaxTaps       = 16
	MaxDeltaWidth = 1 << 22 // of all rows of In
)

// slot returns the number of the cache, or of the recurrent state, of a layer.
func (c *Config) slot(layer int) int { return c.before(layer, c.Recurrent(layer)) }

// joint lists the tensors of a layer with Mamba2 or ShortConv. A layer has those that it names.
func (s *specs) joint(c *Config, l *DeltaSpec) {
	d := &c.Delta
	s.linear(l.Joint, d.JointRows(), c.Hidden)
	s.add(l.Conv, d.StoredChannels(), 1, d.Taps)
	s.add(l.ConvBias, d.StoredChannels())
	s.add(l.DtBias, d.ValueHeads)
	s.add(l.ALog, d.ValueHeads)
	s.add(l.D, d.ValueHeads)
	s.add(l.Norm, d.Values())
	s.linear(l.Out, c.Hidden, d.Values())
}
