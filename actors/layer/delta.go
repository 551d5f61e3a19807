package layer

import (
	"github.com/shoal-llm/shoal/actors/layer/mixer"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/states"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/model/recurrent"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// Delta is the weights of a layer with a mixer that has a state instead of attention (model/delta.go).
// With mapping Gather a socket has the rows Placement.DeltaRows of In, with Reduce all of them.
type Delta struct {
	In    *tensor.Weight // q, k, v and z of each key head in turn; nil if the socket has no rows
	Gates *tensor.Weight // (Delta.GateRows, Hidden): whole, in float32, or nil if there are none
	mixer.Weights
}

func (w *Delta) matrices() []*tensor.Weight {
	if w == nil {
		return nil
	}
	return []*tensor.Weight{w.In, w.Gates}
}

// RecurrentOf returns the shape of a model's recurrent states.
func RecurrentOf(c *model.Config) states.Shape {
	r := RecurrentShape(&c.Delta)
	r.Layers = c.RecurrentLayers()
	return r
}

// RecurrentShape returns the shape of the state of one layer.
func RecurrentShape(d *recurrent.Mixer) states.Shape {
	return states.Shape{KeyHeads: d.KeyHeads, ValueHeads: d.ValueHeads, KeyDim: d.KeyDim, ValueDim: d.ValueDim, Taps: d.Taps}
}

func (d *Dims) deltaIn() int  { return stride(d.Recurrent.KeyHeads * d.Delta.Width()) }
func (d *Dims) deltaOut() int { return stride(d.Recurrent.ValueHeads * d.Recurrent.ValueDim) }

// DeltaRows returns the rows of the joint projection of the gated delta rule that a rank has.
func (d *Dims) DeltaRows(p topology.Placement, rank int) topology.Range {
	r := d.Recurrent
	if p.Mapping == topology.Reduce {
		return topology.Range{Hi: r.KeyHeads * d.Delta.Width()}
	}
	return p.DeltaRows(rank, d.KVHeads, r.KeyHeads, d.Delta.Width(), tensor.Units(d.FFN))
}

// deltaRows returns the columns of DeltaIn that a rank computes with mapping Gather.
func (b *Batch) deltaRows(rank int) topology.Range { return b.Dims.DeltaRows(b.Place, rank) }

// deltaCols returns the columns of DeltaIn that belong to KV heads h, and deltaOutCols those of
// DeltaOut.
func (b *Batch) deltaCols(h topology.Range) topology.Range {
	return b.keyHeads(h, b.Dims.Delta.Width())
}

func (b *Batch) deltaOutCols(h topology.Range) topology.Range {
	return b.keyHeads(h, b.Dims.Recurrent.Group()*b.Dims.Recurrent.ValueDim)
}

func (b *Batch) keyHeads(h topology.Range, width int) topology.Range {
	k := b.Dims.Recurrent.HeadsOf(h, b.Dims.KVHeads)
	return topology.Range{Lo: k.Lo * width, Hi: k.Hi * width}
}

// deltaLocal reports whether every rank computes the columns that its states need.
func (b *Batch) deltaLocal() bool {
	for i := range b.Segments {
		for r := range b.Place.Slices {
			need := b.deltaCols(b.heads(&b.Segments[i], r))
			if need.Intersect(b.deltaRows(r)).Len() != need.Len() {
				return false
			}
		}
	}
	return true
}

var (
	// exchangeDelta sends the columns that `from` computed to `to`, whose states need them.
	exchangeDelta = allToAll("exchange-delta", func(b *Batch, from, to int, yield func(Tile)) {
		have := b.deltaRows(from)
		for i := range b.Segments {
			s := &b.Segments[i]
			yield(Tile{DeltaIn, s.rows(), b.deltaCols(b.heads(s, to)).Intersect(have)})
		}
	})

	// exchangeDeltaOut gathers the outputs of value heads on every rank.
	exchangeDeltaOut = allGather("exchange-delta-out", func(b *Batch, rank int, yield func(Tile)) {
		for i := range b.Segments {
			s := &b.Segments[i]
			yield(Tile{DeltaOut, s.rows(), b.deltaOutCols(b.heads(s, rank))})
		}
	})

	// exchangeDeltaHeads sends the outputs of the heads of `from` for the prompt rows that `to`
	// projects.
	exchangeDeltaHeads = allToAll("exchange-delta-heads", func(b *Batch, from, to int, yield func(Tile)) {
		for i := range b.Segments {
			if s := &b.Segments[i]; s.Prefill {
				yield(Tile{DeltaOut, s.rows().Intersect(b.rows[to]), b.deltaOutCols(b.heads(s, from))})
			}
		}
	})
)

func (w *Delta) project(b *Processor) {
	own := b.batch.deltaRows(b.batch.Rank)
	b.projectDelta(w.In, b.batch.all(), topology.Range{Hi: own.Len()}, own.Lo)
	b.projectGates(w)
}

func (w *Delta) projectOwn(b *Processor) {
	all := topology.Range{Hi: b.Dims.Recurrent.KeyHeads * b.Dims.Delta.Width()}
	b.projectDelta(w.In, b.batch.decodeRows(b.batch.Rank), all, 0)
	h := b.batch.deltaCols(b.batch.Place.Slices[b.batch.Rank].KVHeads)
	b.projectDelta(w.In, topology.Range{Lo: b.batch.decode, Hi: b.batch.T}, panelRows(h.Lo, h.Hi, all.Hi), 0)
	b.projectGates(w)
}

// projectDelta multiplies rows out of the matrix by the norms of tokens t. Row r goes to column col+r.
func (b *Processor) projectDelta(m *tensor.Weight, t, out topology.Range, col int) {
	if m == nil || t.Len() == 0 || out.Len() == 0 {
		return
	}
	ld := b.Dims.deltaIn()
	b.Pool.MatMulRows(b.states.In[t.Lo*ld+col:], ld, m, out.Lo, out.Hi, b.Norm[t.Lo*b.Dims.Hidden:], b.Dims.Hidden, t.Len())
}

func (b *Processor) projectGates(w *Delta) {
	if w.Gates != nil {
		b.Pool.MatMul(b.states.Gates, 2*b.Dims.Recurrent.ValueHeads, w.Gates, b.Norm, b.Dims.Hidden, b.batch.T)
	}
}

// run computes the outputs of this rank's heads and advances their states.
func (w *Delta) run(index int, b *Processor) {
	runs := b.mixed[:0]
	for i := range b.batch.Segments {
		s := &b.batch.Segments[i]
		if h := b.batch.heads(s, b.batch.Rank); s.Cache != nil {
			for head := h.Lo; head < h.Hi; head++ {
				runs = append(runs, mixer.Run{First: s.First, N: s.N, Start: s.Start, Prefill: s.Prefill, State: s.Cache.State(index, head)})
			}
		}
	}
	b.mixed = runs
	b.states.Mix(&w.Weights, runs, b.Pool.Run)
}

func (w *Weights) projectDeltaOut(b *Processor) {
	if w.O != nil {
		w.deltaOut(b, b.Y[b.batch.Place.Slices[b.batch.Rank].Out.Lo:], b.batch.all())
	}
}

func (w *Weights) projectOwnDeltaOut(b *Processor) {
	for _, t := range b.batch.owned(b.batch.Rank) {
		if t.Len() > 0 {
			w.deltaOut(b, b.Y[t.Lo*b.Dims.Hidden:], t)
		}
	}
}

func (w *Weights) deltaOut(b *Processor, y []float32, t topology.Range) {
	ld := b.Dims.deltaOut()
	b.states.Normalize(&w.Delta.Weights, t.Lo, t.Len(), b.each)
	b.Pool.MatMul(y, b.Dims.Hidden, w.O, b.states.Out[t.Lo*ld:], ld, t.Len())
}

// mixerShape returns the dimensions of the layers with a state.
func (d *Dims) mixerShape() mixer.Shape {
	if d.Recurrent.Layers == 0 {
		return mixer.Shape{}
	}
	return mixer.Shape{
		Shape: d.Recurrent, Kind: d.Delta.Kind, Width: d.Delta.Width(), Groups: d.Delta.Groups, TimeStep: d.Delta.TimeStep,
		Factors: d.Delta.Factors, NormEps: d.NormEps, In: d.deltaIn(), Out: d.deltaOut(),
	}
}
