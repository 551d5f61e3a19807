package layer

import (
	"cmp"

	"github.com/shoal-llm/shoal/actors/layer/lowrank"
	"github.com/shoal-llm/shoal/collective"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// Rows with LoRA adapters (package lowrank, docs/decisions/lora.md). A step with such rows sends
// activations in float32: the factors read them unrounded. Its matrices still multiply quantized
// blocks, which each rank then computes itself, so other rows keep their bits.

// reduceAdapted sums A x of the down projection over all units, for every rank.
var reduceAdapted = sum("reduce-adapted", func(b *Batch, g Group, done func(error)) {
	nodes, total := b.Backend.Adapted()
	if len(total) == 0 {
		done(nil)
		return
	}
	units := tensor.Units(b.Dims.FFN)
	g.AllReduceTree(collective.OpID(b.NextOp()), units, b.allNodes(units), nodes, total, done)
})

// byAdapter orders segments so that rows of one adapter are adjacent.
func byAdapter(x, y *lowrank.Adapter) int {
	if x == nil || y == nil {
		return cmp.Compare(index(x != nil), index(y != nil))
	}
	return cmp.Compare(x.Key, y.Key)
}

func (b *Batch) findAdapted() {
	b.adapted = b.adapted[:0]
	for i := range b.Segments {
		b.adapted = lowrank.Append(b.adapted, b.Segments[i].Adapter, b.Segments[i].First, b.Segments[i].N)
	}
}

// adapt queues rows out of a matrix of the current layer for tokens t.
func (b *Processor) adapt(m lowrank.Matrix, t, out topology.Range, y []float32, ld int) {
	b.lowrank.Add(b.batch.adapted, b.layer, m, t.Lo, t.Hi, out.Lo, out.Hi, y, ld)
}

func (b *Processor) adaptOut() { b.lowrank.Run(b.Pool, b.Attn, b.Dims.attnCols()) }

// adaptDown adds the product of the down projection's factors to rows of the sum over all ranks.
func (b *Processor) adaptDown(rows ...topology.Range) {
	for _, t := range rows {
		b.adapt(lowrank.Down, t, topology.Range{Lo: 0, Hi: b.Dims.Hidden}, b.Y, b.Dims.Hidden)
	}
	b.lowrank.RunSummed(b.Pool, b.batch.adapted, b.layer, lowrank.Down)
}

func (b *Processor) Adapted() (nodes [][]float32, total []float32) {
	return b.lowrank.Nodes(), b.lowrank.Total()
}
