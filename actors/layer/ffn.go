package layer

import (
	"github.com/shoal-llm/shoal/actors/layer/lowrank"
	"github.com/shoal-llm/shoal/collective"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// The feed-forward network, its norm and its residual sum.

var (
	// exchangeFFN gathers the activations on every rank.
	exchangeFFN = allGather("exchange-ffn", func(b *Batch, rank int, yield func(Tile)) {
		cols := b.Place.Slices[rank].FFN
		if b.step.quantized {
			yield(Tile{QuantizedFFN, b.all(), quantizedCols(cols)})
			return
		}
		yield(Tile{Gate, b.all(), cols})
	})

	// exchangeDown gathers the columns of Y: every rank gets whole rows.
	exchangeDown = allGather("exchange-down", func(b *Batch, rank int, yield func(Tile)) {
		yield(Tile{Sum, b.all(), b.Place.Slices[rank].Down})
	})

	// exchangeDownRows sends the columns of Y that `from` projected for the rows of `to`.
	exchangeDownRows = allToAll("exchange-down-rows", func(b *Batch, from, to int, yield func(Tile)) {
		b.ownedTiles(to, Sum, b.Place.Slices[from].Down, yield)
	})

	// reduceDown sums Y over all units, for every rank.
	reduceDown = sum("reduce-down", func(b *Batch, g Group, done func(error)) {
		units := tensor.Units(b.Dims.FFN)
		g.AllReduceTree(collective.OpID(b.NextOp()), units, b.allNodes(units), b.Backend.Nodes(), b.Backend.Total(), done)
	})

	// scatterDown sums Y as reduceDown does, and gives the decode rows to their owners. Decode rows
	// are sorted by owner.
	scatterDown = sum("scatter-down", func(b *Batch, g Group, done func(error)) {
		b.scatter(g, 0, func(rank int) int { return b.decodeRows(rank).Len() }, done)
	})

	// scatterPrompt sums Y as reduceDown does, and gives the prompt rows to the ranks that own them.
	scatterPrompt = sum("scatter-prompt", func(b *Batch, g Group, done func(error)) {
		b.scatter(g, b.decode, func(rank int) int { return b.rows[rank].Len() }, done)
	})
)

// normFFN computes the norm before the FFN. In a parallel layer, attention has already computed Norm.
func (w *Weights) normFFN(b *Processor) {
	if !b.Dims.Parallel {
		b.norm(w.FFNNorm)
	}
}

func (w *Weights) gateUp(b *Processor) {
	if w.Gate == nil {
		return
	}
	ld, me := b.Dims.gateWidth(), b.batch.Place.Slices[b.batch.Rank].FFN
	b.ffn = w
	b.products = append(b.products, tensor.Product{Y: b.Gate[me.Lo:], LdY: ld, W: w.Gate, R1: me.Len()})
	if w.Up != nil {
		b.products = append(b.products, tensor.Product{Y: b.Up[me.Lo:], LdY: ld, W: w.Up, R1: me.Len()})
	}
	adapted := len(b.batch.adapted) > 0
	byRows := adapted || w.Up == nil // the pool's products end in an activation only in pairs
	alone := b.batch.T*me.Len() < minParallelActivations
	if !alone && !byRows {
		b.products[0].Then = b.activate
	}
	b.multiplyNorm(b.batch.all())
	b.products = b.products[:0]
	if adapted {
		all := topology.Range{Lo: 0, Hi: me.Len()}
		b.adapt(lowrank.Gate, b.batch.all(), all, b.Gate[me.Lo:], ld)
		if w.Up != nil {
			b.adapt(lowrank.Up, b.batch.all(), all, b.Up[me.Lo:], ld)
		}
		b.lowrank.Run(b.Pool, b.Norm, b.Dims.Hidden)
	}
	switch {
	case byRows:
		b.each(b.batch.T, func(t int) { b.activateTile(0, me.Len(), t, t+1) })
	case alone:
		b.activateTile(0, me.Len(), 0, b.batch.T)
	}
}

// minParallelActivations is the number of activations from which each thread applies the activation to
// its own products. A single thread needs a few microseconds for fewer, mostly to fetch the values
// that other threads wrote.
const minParallelActivations = 4096

// activateTile adds biases and applies the activation to columns [r0, r1) of tokens [t0, t1).
func (b *Processor) activateTile(r0, r1, t0, t1 int) {
	w, ld, me := b.ffn, b.Dims.gateWidth(), b.batch.Place.Slices[b.batch.Rank].FFN
	c := topology.Range{Lo: me.Lo + r0, Hi: me.Lo + r1}
	addBias(b.Gate[t0*ld:], ld, t1-t0, w.GateBias, c)
	addBias(b.Up[t0*ld:], ld, t1-t0, w.UpBias, c)
	for t := t0; t < t1; t++ {
		gate := b.Gate[t*ld+c.Lo : t*ld+c.Hi]
		if w.GateFactor != 0 {
			tensor.Scale(gate, w.GateFactor)
		}
		if w.Up == nil {
			w.Activation.Of(gate, gate)
			continue
		}
		w.Activation.Mul(gate, gate, b.Up[t*ld+c.Lo:t*ld+c.Hi])
	}
	b.quantize(b.Gate, ld, b.Dims.FFN, topology.Range{Lo: t0, Hi: t1}, c)
}

func (w *Weights) projectDown(b *Processor) {
	me := b.batch.Place.Slices[b.batch.Rank].Down
	switch y := b.Y[me.Lo:]; {
	case w.Down == nil:
	case b.batch.step.quantized:
		b.multiplyQuantized(y, w.Down, b.Dims.FFN, b.batch.all())
	default:
		b.Pool.MatMul(y, b.Dims.Hidden, w.Down, b.Gate, b.Dims.gateWidth(), b.batch.T)
		b.adapt(lowrank.Down, b.batch.all(), topology.Range{Lo: 0, Hi: me.Len()}, y, b.Dims.Hidden)
		b.lowrank.Run(b.Pool, b.Gate, b.Dims.gateWidth())
	}
}

func (w *Weights) projectUnits(b *Processor) {
	b.partial = b.partialBuffers(b.batch.Rank)
	first := b.batch.Place.Slices[b.batch.Rank].FFN.Lo
	x, ld := b.Gate[first:], b.Dims.gateWidth()
	switch {
	case w.Down == nil:
	case b.batch.step.quantized:
		ld := quantizedFloats(b.Dims.FFN)
		b.Pool.MatMulPartialQuantized(b.partial, w.Down, tensor.FloatBytes(b.quantized.mid[quantizedFloats(first):]), 4*ld, b.batch.T)
	default:
		b.Pool.MatMulPartial(b.partial, w.Down, x, ld, b.batch.T)
	}
	b.lowrank.Partial(b.Pool, b.batch.adapted, b.layer, lowrank.Down, len(b.partial), x, ld)
}

func (w *Weights) addOwnedFFN(b *Processor) {
	for _, r := range b.batch.owned(b.batch.Rank) {
		w.addFFN(b, r)
	}
}

func (w *Weights) addFFN(b *Processor, rows topology.Range) {
	h := b.Dims.Hidden
	addBias(b.Y[rows.Lo*h:], h, rows.Len(), w.DownBias, topology.Range{Lo: 0, Hi: h})
	if w.Experts != nil && w.Experts.DenseFFN != nil {
		b.experts.Join(w.Experts.DenseFFN, rows)
	}
	b.addResidual(w.PostFFNNorm, w.FFNFactor, rows)
	w.endLayer(b, rows)
}

// allNodes returns the tree nodes of the down projection that each rank contributes.
func (b *Batch) allNodes(units int) [][]tensor.Span {
	if len(b.nodes) != len(b.Place.Slices) {
		b.nodes = make([][]tensor.Span, len(b.Place.Slices))
		for r, s := range b.Place.Slices {
			b.nodes[r] = tensor.Subtrees(s.FFNUnits.Lo, s.FFNUnits.Hi, units)
		}
	}
	return b.nodes
}

func (b *Processor) partialBuffers(rank int) [][]float32 {
	nodes := b.batch.allNodes(tensor.Units(b.Dims.FFN))[rank]
	b.partial = grow(b.partial, len(nodes))
	for i := range b.partial {
		b.partial[i] = growF(b.partial[i], b.batch.T*b.Dims.Hidden)
	}
	return b.partial
}

// scatter sums the nodes of all ranks' units. From row first on, each rank gets the next rows(rank)
// rows, in order of rank.
func (b *Batch) scatter(g Group, first int, rows func(rank int) int, done func(error)) {
	units, h, n := tensor.Units(b.Dims.FFN), b.Dims.Hidden, len(b.Place.Slices)
	b.bounds = append(b.bounds[:0], 0)
	for r := range n {
		b.bounds = append(b.bounds, b.bounds[r]+rows(r)*h)
	}
	b.parts = b.parts[:0]
	for _, p := range b.Backend.Nodes() {
		b.parts = append(b.parts, p[first*h:first*h+b.bounds[n]])
	}
	mine := b.Backend.Total()[first*h+b.bounds[b.Rank] : first*h+b.bounds[b.Rank+1]]
	g.ReduceScatterTree(collective.OpID(b.NextOp()), units, b.allNodes(units), b.parts, b.bounds, mine, done)
}
