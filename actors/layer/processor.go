package layer

import (
	"time"

	"github.com/shoal-llm/shoal/actors/layer/experts"
	"github.com/shoal-llm/shoal/actors/layer/lowrank"
	"github.com/shoal-llm/shoal/actors/layer/mixer"
	"github.com/shoal-llm/shoal/actors/layer/rotation"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// Processor is the CPU backend. It holds the activations of a micro-batch in host memory and reuses
// its buffers in every step.
type Processor struct {
	Dims    *Dims  // of the current layer
	widths  []Dims // by index of Dims.Widths
	maxRows int
	batch   *Batch // the current step, set by Begin
	Layout  tensor.KVLayout
	Pool    *tensor.Pool

	X       []float32   // (T, Hidden) residual stream, replicated
	Norm    []float32   // (T, Hidden)
	Y       []float32   // (T, Hidden)
	QKV     []float32   // (T, qkvWidth)
	Attn    []float32   // (T, attnCols)
	lent    [][]float32 // by number of the lending layer: (decode rows, keys and values)
	KV      []float32   // (T, kvWidth) with SwiftKV: keys and values of each of the later layers' caches
	Gate    []float32   // (T, gateWidth): stride of FFN columns
	Up      []float32   // (T, gateWidth)
	grown   []float32   // (T): factors of queries (model.Growth); nil: none
	Cos     [][]float32 // (Ropes)(T, pairsOf)
	Sin     [][]float32
	pairsOf []int // number of pairs of each rotation

	squares         []float32        // (T, Heads+KVHeads): sums of squares of queries and keys (normheads.go)
	products        []tensor.Product // queued products of the same input rows
	biases          [][]float32
	partial         [][]float32 // projectUnits: this rank's tree nodes of the down projection
	final           []float32   // scratch of Logits: norms
	logits          []float32   // scratch of Logits: (LogitRows, Vocab)
	bests           []int       // scratch of Logits: the best of each part of a row
	pairs           []float32   // scratch of Join: (T, 2*Hidden)
	attention       attention
	latent          latentBatch
	latentAttention latentAttention
	states          *mixer.Rows // of layers with a state; nil: none
	mixed           []mixer.Run
	experts         *experts.Rows // of layers with experts; nil: none
	perLayer        perLayer
	quantized       quantized
	normWeight      []float32
	postNorm        []float32
	factor          float32  // of residualRow; 0 counts as 1
	ffn             *Weights // the weights that activateTile uses
	firstRow        int      // offset of the rows of residualRow
	layer           int      // number of the current layer
	lowrank         lowrank.Queue
	// Tasks per row or tile, allocated once so that a step allocates nothing.
	normRow, residualRow, addNormRow func(t int)
	activate                         func(r0, r1, t0, t1 int)
}

// NewProcessor allocates the activations of a micro-batch of at most maxRows rows.
func NewProcessor(d Dims, maxRows int, layout tensor.KVLayout, pool *tensor.Pool) *Processor {
	b := &Processor{
		Dims: &d, maxRows: maxRows, Layout: layout, Pool: pool,
		X: make([]float32, maxRows*d.Hidden), Norm: make([]float32, maxRows*d.Hidden), Y: make([]float32, maxRows*d.Hidden),
		QKV: make([]float32, maxRows*d.maxOver((*Dims).qkvWidth)), Attn: make([]float32, maxRows*d.maxOver((*Dims).attnCols)),
		Gate: make([]float32, maxRows*d.maxOver((*Dims).gateWidth)), Up: make([]float32, maxRows*d.maxOver((*Dims).gateWidth)),
	}
	for i := range d.Widths {
		b.widths = append(b.widths, d.of(i))
	}
	if d.Growth.Beta != 0 {
		b.grown = make([]float32, maxRows)
	}
	if d.QKNormOf == model.OfProjection {
		b.squares = make([]float32, maxRows*(d.Heads+d.KVHeads))
	}
	for range max(1, d.Ropes) {
		n := maxRows * d.maxOver((*Dims).ropeHalf)
		b.Cos, b.Sin = append(b.Cos, make([]float32, n)), append(b.Sin, make([]float32, n))
	}
	h := d.Hidden
	b.normRow = func(t int) {
		if b.normWeight == nil {
			copy(b.Norm[t*h:(t+1)*h], b.X[t*h:(t+1)*h])
			return
		}
		d.norm(b.Norm[t*h:(t+1)*h], b.X[t*h:(t+1)*h], b.normWeight)
		if d.PostNorm {
			copy(b.X[t*h:(t+1)*h], b.Norm[t*h:(t+1)*h])
		}
	}
	b.residualRow = func(t int) {
		t += b.firstRow
		y := b.Y[t*h : (t+1)*h]
		if b.postNorm != nil {
			tensor.RMSNorm(y, y, b.postNorm, d.NormEps)
		}
		if b.factor != 0 {
			tensor.Scale(y, b.factor)
		}
		tensor.Add(b.X[t*h:(t+1)*h], y)
	}
	b.addNormRow = func(t int) {
		b.residualRow(t)
		if !d.Parallel {
			b.normRow(t + b.firstRow)
		}
	}
	b.activate = b.activateTile
	b.attention.init(b)
	b.experts = experts.New(d.expertShape(), maxRows, pool, b.each, b.X, b.Norm, b.Y)
	b.initPerLayer(maxRows)
	b.latentAttention.init(b)
	b.initLatent(maxRows)
	b.states = mixer.New(b.Dims.mixerShape(), maxRows)
	return b
}

// Begin implements Backend.
func (b *Processor) Begin(batch *Batch, rotations []*rotation.Table) {
	b.batch = batch
	b.pairsOf = b.pairsOf[:0]
	for _, turn := range rotations {
		b.pairsOf = append(b.pairsOf, turn.Pairs())
	}
	for _, s := range b.batch.Segments {
		for i := range s.N {
			r := s.First + i
			for j, turn := range rotations {
				half := turn.Pairs()
				turn.Fill(s.Start+i, b.Cos[j][r*half:(r+1)*half], b.Sin[j][r*half:(r+1)*half])
			}
			if b.grown != nil {
				b.grown[r] = rotation.QueryFactor(b.Dims.Growth, s.Start+i)
			}
		}
	}
	if b.batch.step.quantized {
		b.growQuantized()
	}
}

// Run implements Backend.
func (b *Processor) Run(runs []LayerRun, between func() bool) {
	for i := range runs {
		if i > 0 && between != nil && !between() {
			return
		}
		b.runLayer(runs[i].Layer.(*Weights), runs[i].Ops)
	}
}

// runLayer runs operations and counts their time. It reads the clock once for each part.
func (b *Processor) runLayer(w *Weights, ops []Op) {
	b.enter(w.Widths)
	b.layer = w.Number
	began, before := time.Now(), b.batch.Spent[Projections]+b.batch.Spent[Attention]
	for i, op := range ops {
		operations[op](w, b)
		if i+1 == len(ops) || ops[i+1].Part() != op.Part() {
			ended := time.Now()
			b.batch.Spent[op.Part()] += ended.Sub(began)
			began = ended
		}
	}
	if took := b.batch.Spent[Projections] + b.batch.Spent[Attention] - before; took > 0 {
		b.batch.own.Add(took)
	}
}

// enter sets the widths of the layer that is computed next.
func (b *Processor) enter(widths int) {
	if b.widths != nil {
		b.Dims = &b.widths[widths]
		b.Layout.KDim, b.Layout.VDim = b.Dims.HeadDim, b.Dims.HeadDim
		b.batch.enter(widths)
	}
}

// matrix returns the memory and the row stride of an activation. Quantized blocks count as float32.
func (b *Processor) matrix(of Activation) (m []float32, ld int) {
	switch d := b.Dims; of {
	case QKV:
		return b.QKV, b.Dims.qkvWidth()
	case HeadSquares:
		return b.squares, d.Heads + d.KVHeads
	case LaterKV:
		return b.KV, b.batch.kvWidth()
	case Attended:
		return b.Attn, d.attnCols()
	case Gate:
		return b.Gate, d.gateWidth()
	case Sum:
		return b.Y, d.Hidden
	case QuantizedNorm:
		return b.quantized.norm, quantizedFloats(d.Hidden)
	case QuantizedAttention:
		return b.quantized.mid, quantizedFloats(d.attnCols())
	case QuantizedFFN:
		return b.quantized.mid, quantizedFloats(d.FFN)
	case Latents:
		return b.latent.down, d.downCols()
	case LatentMeans:
		return b.latent.out, d.Heads * d.Latent.Rank
	case ExpertGate:
		return b.experts.Gate, d.MoE.FFN
	case SharedSum:
		return b.experts.SharedSum, d.Hidden
	case DeltaIn:
		return b.states.In, d.deltaIn()
	case DeltaOut:
		return b.states.Out, d.deltaOut()
	case SharedGate:
		return b.experts.SharedGate, d.MoE.Shared
	}
	return b.X, b.Dims.Hidden
}

func (b *Processor) Pack(to []float32, tiles []Tile) []float32 {
	to = growF(to, floats(tiles))
	at := 0
	for _, t := range tiles {
		m, ld := b.matrix(t.Of)
		for row := t.Rows.Lo; row < t.Rows.Hi; row++ {
			at += copy(to[at:], m[row*ld+t.Cols.Lo:row*ld+t.Cols.Hi])
		}
	}
	return to
}

func (b *Processor) Unpack(from []float32, tiles []Tile) {
	for _, t := range tiles {
		m, ld := b.matrix(t.Of)
		for row := t.Rows.Lo; row < t.Rows.Hi; row++ {
			from = from[copy(m[row*ld+t.Cols.Lo:row*ld+t.Cols.Hi], from):]
		}
	}
}

// LoadRows implements Backend.
func (b *Processor) LoadRows(rows topology.Range, blocks [][]byte) {
	x := b.residualBytes(rows)
	b.Pool.Run(len(blocks), func(i int) { copy(x[i*len(blocks[0]):], blocks[i]) })
}

// StoreRows implements Backend.
func (b *Processor) StoreRows(rows topology.Range, blocks [][]byte) {
	x := b.residualBytes(rows)
	b.Pool.Run(len(blocks), func(i int) { copy(blocks[i], x[i*len(blocks[0]):]) })
}

func (b *Processor) residualBytes(rows topology.Range) []byte {
	return tensor.FloatBytes(b.X[rows.Lo*b.Dims.Hidden : rows.Hi*b.Dims.Hidden])
}

// Close and CloseReduced implement Backend. The garbage collector frees the memory.
func (b *Processor) Close()        {}
func (b *Processor) CloseReduced() {}

func (b *Processor) Nodes() [][]float32 { return b.partial }

func (b *Processor) Total() []float32 { return b.Y[:b.batch.T*b.Dims.Hidden] }
