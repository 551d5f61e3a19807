package shard

import (
	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/actors/layer/mixer"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/model/recurrent"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// delta reads a layer with a mixer that has a state, except its output projection. The joint projection
// has the rows of a key head next to each other. The gates are packed in float32: an error in a decay
// changes the state of all later tokens.
func (l *loader) delta(c *model.Config, n *model.DeltaSpec, me cut) *layer.Delta {
	d := &c.Delta
	w := &layer.Delta{Weights: mixer.NewWeights(l.vector(n.ALog), l.vector(n.DtBias), l.vector(n.Norm), d.Negated)}
	w.D = l.vector(n.D)
	units := upTo(tensor.Units(c.Hidden))
	w.In = l.room(l.typeOf(n.Out.Weight, n.Joint.Weight, n.QKV.Weight, n.Z.Weight), n.Out.Weight, me.delta.Len(), c.Hidden, units)
	l.fillRuns(w.In, me.delta, func(r int) (model.Linear, int) { return n.InRow(d, r) })
	if rows := d.GateRows(); rows > 0 {
		w.Gates = l.room(tensor.F32, n.Out.Weight, rows, c.Hidden, units)
		l.fillRuns(w.Gates, upTo(rows), func(r int) (model.Linear, int) { return n.GateRow(d, r) })
	}
	w.Conv = l.convolution(d, n)
	if bias := l.vector(n.ConvBias); bias != nil {
		w.ConvBias = make([]float32, len(w.Conv)/d.Taps)
		for c := range w.ConvBias {
			w.ConvBias[c] = bias[d.Channel(c)]
		}
	}
	return w
}

// fillRuns packs rows of a matrix that come from several places of several tensors.
func (l *loader) fillRuns(w *tensor.Weight, rows topology.Range, where func(r int) (from model.Linear, at int)) {
	for r := rows.Lo; r < rows.Hi && w != nil; {
		from, at := where(r)
		n := 1
		for ; r+n < rows.Hi; n++ {
			if next, i := where(r + n); next.Weight != from.Weight || i != at+n {
				break
			}
		}
		from.First += at
		l.fill(w, r-rows.Lo, from, upTo(n))
		r += n
	}
}

// convolution reads the filters as (Taps, channels), with the channels of a key head next to each
// other.
func (l *loader) convolution(d *recurrent.Mixer, n *model.DeltaSpec) []float32 {
	if l.stopped() || l.measure {
		return nil
	}
	t, err := l.tensor(n.Conv)
	if err != nil {
		l.err = err
		return nil
	}
	channels, filter := d.KeyHeads*layer.RecurrentShape(d).Channels(), make([]float32, d.Taps)
	out := make([]float32, d.Taps*channels)
	for c := range channels {
		t.Row(filter, d.Channel(c), 0, d.Taps)
		f := d.ChannelFactor(c)
		for tap, v := range filter {
			out[tap*channels+c] = v * f
		}
	}
	return out
}
