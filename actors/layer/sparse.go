package layer

import (
	"github.com/shoal-llm/shoal/actors/layer/experts"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// Layers with experts (package experts): their exchanges, and the columns that each rank computes.

// exchangeBoth is exchangeDown for the two outputs of such a layer.
var exchangeBoth = allGather("exchange-both", func(b *Batch, rank int, yield func(Tile)) {
	yield(Tile{Sum, b.all(), b.Place.Slices[rank].Down})
	yield(Tile{SharedSum, b.all(), b.Place.Slices[rank].Down})
})

// exchangeExperts gathers the experts' activations on every rank. It replaces exchangeFFN.
var exchangeExperts = allGather("exchange-experts", func(b *Batch, rank int, yield func(Tile)) {
	d := &b.Dims.MoE
	yield(Tile{ExpertGate, topology.Range{Lo: 0, Hi: b.T * d.PerToken}, b.ExpertColumns(rank)})
	yield(Tile{SharedGate, b.all(), b.SharedColumns(rank)})
})

// ExpertColumns returns the columns of every expert's activations that a rank computes.
// SharedColumns returns those of the shared experts.
func (b *Batch) ExpertColumns(rank int) topology.Range { return b.part(rank, b.Dims.MoE.FFN) }
func (b *Batch) SharedColumns(rank int) topology.Range { return b.part(rank, b.Dims.MoE.Shared) }

func (b *Batch) part(rank, width int) topology.Range {
	return b.Place.Slices[rank].Part(tensor.Units(b.Dims.FFN), width)
}

// expertStep returns the part of a layer with experts that this rank computes.
func (b *Batch) expertStep() experts.Step {
	return experts.Step{
		T: b.T, Alone: b.alone(), Experts: b.ExpertColumns(b.Rank), Shared: b.SharedColumns(b.Rank),
		Down: b.Place.Slices[b.Rank].Down,
	}
}

// expertShape returns the dimensions of the layers with experts.
func (d *Dims) expertShape() experts.Shape {
	return experts.Shape{MoE: d.MoE, Hidden: d.Hidden, NormEps: d.NormEps, Activation: d.Activation}
}
