package accelerator

import (
	"time"

	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/actors/layer/rotation"
	"github.com/shoal-llm/shoal/internal/engine/cuda"
	"github.com/shoal-llm/shoal/internal/engine/cuda/card"
	"github.com/shoal-llm/shoal/internal/engine/cuda/launch"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// Backend implements layer.Backend on a card. Its methods put operations into the card's stream, and
// wait only for results that the host reads.
type Backend struct {
	card   *card.Card
	blocks *card.Blocks
	dims   layer.Dims
	cache  tensor.KVLayout
	score  tensor.Score
	batch  *layer.Batch
	memory allocations

	x        cuda.Pointer // (T, Hidden) residual stream
	y        cuda.Pointer // (T, Hidden) output of attention or FFN, where a norm or a factor follows
	qkv      cuda.Pointer // (T, queries, keys, values)
	gateUp   cuda.Pointer // (T, FFN of the gate, FFN of up)
	norms    activation   // (T, Hidden)
	attended activation   // (T, queries)
	gated    activation   // (T, FFN)
	scratch  grown        // of decode attention
	observer observer
	mix      *mixture     // nil: the model has no experts
	logits   cuda.Pointer // (LogitRows, Vocab)
	bests    cuda.Pointer // (LogitRows) indices, then logits
	parts    cuda.Pointer // scratch of launch.Best

	frame   *frame
	ops     *card.Sequence // operations that are not in the stream yet
	results *cuda.Pinned   // bests, then a row of the residual stream
	whole   []*cuda.Pinned // whole rows of logits

	decode  int  // decode rows, which come first
	prompts int  // first row of a prompt
	slots   int  // the most slots that a decode row reads
	started bool // the step's inputs are in the stream
	busy    bool // work may be in the stream

	rank rank // as one of several
}

// activation is an input of products: plain, rounded for quantized weights, or both.
type activation struct {
	plain   cuda.Pointer
	rounded launch.Rounded
	cols    int
}

// input returns an activation from a row on.
func (b *Backend) input(a activation, row int) activation {
	n := int64(row) * int64(a.cols)
	rounded := launch.Rounded{Bytes: a.rounded.Bytes.Add(n), Scales: a.rounded.Scales.Add(n / tensor.BlockWidth * 4)}
	return activation{a.plain.Add(4 * n), rounded, a.cols}
}

func newBackend(d *Device, dims layer.Dims, maxRows int, cache tensor.KVLayout) *Backend {
	b := &Backend{card: d.card, blocks: d.blocks, dims: dims, cache: cache, score: dims.AttentionScore(), memory: allocations{card: d.card}}
	m, rows := &b.memory, int64(maxRows)
	width := 4 * rows * int64(dims.Hidden)
	b.x, b.y = m.alloc(width), m.alloc(width)
	b.qkv, b.gateUp = m.alloc(4*rows*int64(b.qkvWidth())), m.alloc(4*rows*int64(2*dims.FFN))
	b.norms, b.attended, b.gated = m.activation(maxRows, dims.Hidden), m.activation(maxRows, b.queryWidth()), m.activation(maxRows, dims.FFN)
	b.logits, b.bests = m.alloc(4*layer.LogitRows*int64(dims.Vocab)), m.alloc(8*layer.LogitRows)
	b.parts = m.alloc(launch.BestBytes(layer.LogitRows, dims.Vocab))
	d.card.Must(m.err)
	b.mix = newMixture(b, maxRows)
	b.frame, b.ops = newFrame(d.card, m, dims, maxRows), d.card.Sequence()
	var err error
	b.results, err = d.card.Pin(8*layer.LogitRows + 4*dims.Hidden)
	d.card.Must(err)
	return b
}

// Close implements layer.Backend.
func (b *Backend) Close() {
	b.card.Wait()
	b.ops.Close()
	b.memory.Close()
	b.card.Must(b.frame.close())
	b.card.Must(b.results.Close())
	for _, p := range b.whole {
		b.card.Must(p.Close())
	}
	b.whole = nil
	b.scratch.close()
	b.observer.close()
	b.mix.close(b)
	b.rank.close()
}

func (b *Backend) queryWidth() int { return b.dims.Heads * b.dims.HeadDim }
func (b *Backend) qkvWidth() int   { return (b.dims.Heads + 2*b.dims.KVHeads) * b.dims.HeadDim }

// Begin implements layer.Backend.
func (b *Backend) Begin(batch *layer.Batch, rotations []*rotation.Table) {
	if b.busy { // the memory of the inputs is still read
		b.wait()
	}
	b.batch, b.started, b.decode, b.slots, b.prompts = batch, false, 0, 0, 0
	for i := range batch.Segments {
		s := &batch.Segments[i]
		if s.Prefill {
			break
		}
		if b.prompts += s.N; s.Cache != nil {
			b.decode += s.N
			b.slots = max(b.slots, s.Start+s.N)
		}
	}
	if b.several() {
		b.beginShare()
	}
	b.frame.fill(b, rotations)
}

// start puts the inputs of the step into the stream, before its first operation.
func (b *Backend) start() {
	b.busy = true
	if b.started {
		return
	}
	b.started = true
	b.blocks.Settle()
	b.frame.upload(b)
}

// do adds an operation to the step. On several ranks, exchanges need its result soon. With experts, the
// operations of a step do not repeat.
func (b *Backend) do(o launch.Operation) {
	if b.several() || b.mix != nil {
		b.card.Do(o)
	} else {
		b.ops.Do(o)
	}
}

// wait waits for all work.
func (b *Backend) wait() {
	b.ops.Start()
	b.observe()
	b.busy, b.rank.staged.used = false, 0
}

// Compact implements layer.Backend. Only SwiftKV drops rows, and unsupported refuses it.
func (b *Backend) Compact([]topology.Range) { panic("accelerator: SwiftKV is not computed on a card") }

// Run implements layer.Backend. It waits for the card after prompt rows, so that their time is known, and if a
// policy evicts by the attention of the step. After other decode rows, Logits waits, and on several ranks the
// exchanges do.
func (b *Backend) Run(runs []layer.LayerRun, _ func() bool) {
	began := time.Now()
	b.start()
	ops, alone := &operations, !b.several()
	if !alone {
		ops = &rankOperations
	}
	for _, r := range runs {
		w := r.Layer.(*weights)
		for _, op := range r.Ops {
			ops[op](b, w)
		}
	}
	if b.ops.Start(); alone && b.decode < b.batch.T || len(b.observer.seen) > 0 {
		b.wait()
	}
	b.batch.Spent[layer.Projections] += time.Since(began)
}

// operations has the operations of a rank that is alone. A step that rounds activations has the same
// ones: norm rounds its result if the next product reads rounded inputs.
var operations = [layer.Ops]func(b *Backend, w *weights){
	layer.OpNormAttention:      (*Backend).normAttention,
	layer.OpNormOwnedAttention: (*Backend).normAttention,
	layer.OpProjectQKV:         (*Backend).queriesKeysValues,
	layer.OpAttend:             (*Backend).attendAll,
	layer.OpProjectOut:         func(b *Backend, w *weights) { b.output(w.o, b.attended, w.postAttnNorm, w.mixFactor) },
	layer.OpNormFFN:            (*Backend).normFFN,
	layer.OpNormAllFFN:         (*Backend).normFFN,
	layer.OpAddNormFFN:         (*Backend).normFFN,
	layer.OpAddNormOwnedFFN:    (*Backend).normFFN,
	layer.OpGateUp:             (*Backend).gate,
	layer.OpProjectDown:        func(b *Backend, w *weights) { b.output(w.down, b.gated, w.postFFNorm, w.ffnFactor) },
	layer.OpAddFFN:             func(*Backend, *weights) {}, // output has added it
	layer.OpAddOwnedFFN:        func(*Backend, *weights) {},
	layer.OpExpertsUp:          (*Backend).expertsUp,
	layer.OpExpertsDown:        (*Backend).expertsDown,
}

func (b *Backend) queriesKeysValues(w *weights) {
	b.multiply(w.qkv, b.norms, b.qkv, b.qkvWidth(), 0)
}

func (b *Backend) normAttention(w *weights) {
	b.norm(w.attnNorm, b.x, b.batch.T, b.norms, w.qkv.plain(), w.qkv.rounded())
}

func (b *Backend) normFFN(w *weights) {
	if w.experts != nil { // the router reads numbers that are not rounded
		b.norm(w.ffnNorm, b.x, b.batch.T, b.norms, true, true)
		return
	}
	b.norm(w.ffnNorm, b.x, b.batch.T, b.norms, w.gateUp.plain(), w.gateUp.rounded())
}

// norm computes the RMS norm of rows of x; with weight 0 it copies or rounds them.
func (b *Backend) norm(weight, x cuda.Pointer, rows int, to activation, plain, rounded bool) {
	h := b.dims.Hidden
	if weight == 0 {
		if plain {
			b.do(launch.CopyRows{To: to.plain, From: x, LdTo: h, LdFrom: h, Rows: rows, Cols: h})
		}
		if rounded {
			b.do(launch.Quantize{X: x, LdX: h, To: to.rounded, Rows: rows, Cols: h})
		}
		return
	}
	o := launch.Norm{X: x, Weight: weight, Eps: b.dims.NormEps, Rows: rows, Cols: h}
	if plain {
		o.Out = to.plain
	}
	if rounded {
		o.To = to.rounded
	}
	b.do(o)
}

// multiply computes the products of all rows of the input. It adds them to residual, unless that is 0.
func (b *Backend) multiply(j joined, in activation, y cuda.Pointer, ld int, residual cuda.Pointer) {
	for _, p := range j.parts {
		o := launch.Product{W: p.Weight, X: in.plain, Rounded: in.rounded, N: b.batch.T, Y: y.Add(4 * int64(p.at)), LdY: ld, Bias: p.bias}
		if residual != 0 {
			o.Residual = residual.Add(4 * int64(p.at))
		}
		b.do(o)
	}
}

// output adds the product of an output matrix to the residual stream, after its norm and its factor if
// the layer has them.
func (b *Backend) output(j joined, in activation, norm cuda.Pointer, factor float32) {
	if norm == 0 && factor == 0 {
		b.multiply(j, in, b.x, b.dims.Hidden, b.x)
		return
	}
	b.multiply(j, in, b.y, b.dims.Hidden, 0)
	b.addRows(norm, factor, b.allRows())
}

// addRows adds rows of y to the residual stream, after their norm and their factor if there are some.
func (b *Backend) addRows(norm cuda.Pointer, factor float32, rows ...topology.Range) {
	h := b.dims.Hidden
	for _, r := range rows {
		if r.Len() == 0 {
			continue
		}
		x, y := b.rowsOf(b.x, r.Lo), b.rowsOf(b.y, r.Lo)
		if norm != 0 {
			o := launch.Norm{X: y, Weight: norm, Eps: b.dims.NormEps, Rows: r.Len(), Cols: h}
			if factor == 0 {
				o.Residual, o.Out = x, x
				b.do(o)
				continue
			}
			o.Out, y = b.norms.plain, b.norms.plain
			b.do(o)
		}
		if factor != 0 {
			b.do(launch.Logits{X: y, Ld: h, Scale: factor, Rows: r.Len(), Cols: h})
		}
		b.do(launch.Add{X: x, Y: y, Rows: r.Len(), Cols: h})
	}
}

func (b *Backend) gate(w *weights) {
	f := b.dims.FFN
	b.multiply(w.gateUp, b.norms, b.gateUp, 2*f, 0)
	o := launch.Gate{
		Activation: w.activate, Gate: b.gateUp, Up: b.gateUp.Add(4 * int64(f)), Ld: 2 * f, GateBias: w.gateBias,
		UpBias: w.upBias, Rows: b.batch.T, Cols: f,
	}
	if w.down.plain() {
		o.Out = b.gated.plain
	}
	if w.down.rounded() {
		o.To = b.gated.rounded
	}
	b.do(o)
}

// Adapted implements layer.Backend. A card computes no adapters.
func (b *Backend) Adapted() ([][]float32, []float32) {
	panic("accelerator: adapters are not computed on a card")
}
