package shard

import (
	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// delta reads a layer with the gated delta rule, except its output projection. The joint projection
// has the rows of a key head next to each other. The gates are packed in float32: an error in a decay
// changes the state of all later tokens.
func (l *loader) delta(c *model.Config, n *model.DeltaSpec, me cut) *layer.Delta {
	d := &c.Delta
	w := layer.NewDelta(l.vector(n.ALog), l.vector(n.DtBias), l.vector(n.Norm))
	units := upTo(tensor.Units(c.Hidden))
	w.In = l.room(l.dt, n.QKV.Weight, me.delta.Len(), c.Hidden, units)
	for r := me.delta.Lo; r < me.delta.Hi && w.In != nil; {
		from, at := n.InRow(d, r)
		rows := 1
		for ; r+rows < me.delta.Hi; rows++ {
			if next, i := n.InRow(d, r+rows); next.Weight != from.Weight || i != at+rows {
				break
			}
		}
		from.First += at
		l.fill(w.In, r-me.delta.Lo, from, upTo(rows))
		r += rows
	}
	w.Gates = l.room(tensor.F32, n.B.Weight, 2*d.ValueHeads, c.Hidden, units)
	l.fill(w.Gates, 0, n.B, upTo(d.ValueHeads))
	l.fill(w.Gates, d.ValueHeads, n.A, upTo(d.ValueHeads))
	w.Conv = l.convolution(d, n)
	return w
}

// convolution reads the filters as (Taps, channels), with the channels of a key head next to each
// other.
func (l *loader) convolution(d *model.Delta, n *model.DeltaSpec) []float32 {
	if l.stopped() || l.measure {
		return nil
	}
	t, err := l.tensor(n.Conv)
	if err != nil {
		l.err = err
		return nil
	}
	channels, filter := t.Rows(), make([]float32, d.Taps)
	out := make([]float32, d.Taps*channels)
	for c := range channels {
		t.Row(filter, n.Channel(d, c), 0, d.Taps)
		for tap, v := range filter {
			out[tap*channels+c] = v
		}
	}
	return out
}
