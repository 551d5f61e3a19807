// Package mixer computes the operators with a recurrent state that replace attention: the gated delta
// rule, Mamba-2 and the short convolution (recurrent.Kind). It works on the rows of a batch after their
// projections. A head is computed token by token, so its bits depend on no chunk, batch or placement.
package mixer

import (
	"math"

	"github.com/shoal-llm/shoal/internal/engine/kvcache/states"
	"github.com/shoal-llm/shoal/internal/engine/model/recurrent"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/engine/tensor/f32"
)

// Shape is the dimensions of a model's layers with a state.
type Shape struct {
	states.Shape
	Kind     recurrent.Kind
	Width    int        // columns of Rows.In for one key head
	Groups   int        // Mamba2: runs of heads whose outputs are normalized together
	TimeStep [2]float32 // Mamba2: bounds of dt; zero: none
	Factors  recurrent.Factors
	NormEps  float32
	In, Out  int // row strides of Rows.In and Rows.Out
}

// Weights are the vectors of a layer, whole on every socket.
type Weights struct {
	Conv     []float32 // (Taps, key heads * Channels)
	ConvBias []float32 // (key heads * Channels), or nil
	Decay    []float32 // (value heads): -exp(A_log)
	DtBias   []float32 // (value heads)
	D        []float32 // Mamba2: (value heads)
	Norm     []float32 // (ValueDim); Mamba2: (value heads * ValueDim), or nil
}

// NewWeights returns weights with their vectors. It replaces aLog by the decays, which it holds already if
// negated.
func NewWeights(aLog, dtBias, norm []float32, negated bool) Weights {
	for i, a := range aLog {
		if !negated {
			aLog[i] = -f32.Exp(a)
		}
	}
	return Weights{Decay: aLog, DtBias: dtBias, Norm: norm}
}

// Rows are the activations of a batch.
type Rows struct {
	Shape
	In []float32 // (T, Shape.In): for each key head q, k, v and z (model.DeltaSpec)
	// Gates holds the rows of model.DeltaSpec's gates. Then it holds two numbers for each value head: beta
	// or dt, and the decay.
	Gates []float32 // (T, 2*value heads)
	Out   []float32 // (T, Shape.Out)

	mid []float32 // (T, key heads * Channels) q, k and v after the convolution, q and k normalized
	w   *Weights

	ones, queryScale, keyScale []float32

	decodes, inputs, states                    []task
	decode, product, input, state, normalizeAt func(i int)
}

// Run is the rows of one sequence, and the state of some of its heads. Rows [First, First+N) of the batch
// are its tokens from position Start on.
type Run struct {
	First, N, Start int
	Prefill         bool
	State           *states.State
}

// task is a key head of a run: rows of its inputs, or one value head of its state.
type task struct {
	Run
	head, value int
	row, n      int // rows within the run
	base        int // tokens in the state; later ones before the run have records
}

// normEps is the epsilon of the normalization of queries and keys, independent of the norms.
const normEps = 1e-6

// inputRows is the number of a prompt's rows per task of the convolution.
const inputRows = 16

// New returns room for a number of rows; nil: the model has no such layers.
func New(s Shape, rows int) *Rows {
	if s.Layers == 0 {
		return nil
	}
	b := &Rows{Shape: s}
	b.In, b.mid = make([]float32, rows*s.In), make([]float32, rows*s.KeyHeads*s.Channels())
	b.Gates, b.Out = make([]float32, rows*2*s.ValueHeads), make([]float32, rows*s.Out)
	fill := func(n int, v float64) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(v)
		}
		return x
	}
	// x/sqrt(sum x² + eps) is RMSNorm of x with eps/n and the weight 1/sqrt(n). Queries are also
	// scaled by 1/sqrt(n).
	n := float64(max(1, s.KeyDim))
	b.ones, b.keyScale, b.queryScale = fill(s.Channels(), 1), fill(s.KeyDim, 1/math.Sqrt(n)), fill(s.KeyDim, 1/n)
	b.decode = func(i int) { b.decodeHead(&b.decodes[i]) }
	b.product = func(i int) { b.each(&b.inputs[i], b.multiply) }
	b.input = func(i int) { b.each(&b.inputs[i], b.convolve) }
	b.state = func(i int) { b.advance(&b.states[i]) }
	b.normalizeAt = b.normalize
	return b
}

func (b *Rows) each(t *task, f func(t *task, row int)) {
	for row := t.row; row < t.row+t.n; row++ {
		f(t, row)
	}
}

// Mix computes the outputs of runs and advances their states. parallel calls a function with each of 0 to
// n-1, possibly concurrently.
func (b *Rows) Mix(w *Weights, runs []Run, parallel func(n int, f func(i int))) {
	b.w, b.decodes, b.inputs, b.states = w, b.decodes[:0], b.inputs[:0], b.states[:0]
	for _, r := range runs {
		if err := r.State.Prompt(r.Start); err != nil && r.Prefill {
			panic(err)
		}
		for head := r.State.Heads().Lo; head < r.State.Heads().Hi; head++ {
			if !r.Prefill {
				b.decodes = append(b.decodes, task{Run: r, head: head, base: r.State.Committed()})
				continue
			}
			for row := 0; row < r.N; row += inputRows {
				b.inputs = append(b.inputs, task{Run: r, head: head, row: row, n: min(inputRows, r.N-row), base: r.Start})
			}
			for v := range b.Group() {
				b.states = append(b.states, task{Run: r, head: head, value: v, n: r.N, base: r.Start})
			}
		}
	}
	parallel(len(b.decodes), b.decode)
	if b.Kind == recurrent.ShortConv {
		parallel(len(b.inputs), b.product)
	}
	parallel(len(b.inputs), b.input)
	parallel(len(b.states), b.state)
	for _, r := range runs {
		if r.Prefill {
			r.State.Advanced(r.Start + r.N)
			continue
		}
		r.State.Advanced(r.State.Committed())
	}
}

// inputAt returns the convolution's inputs of a key head for a row of a task's run. Rows before the run
// come from records or from the state.
func (b *Rows) inputAt(t *task, row int) []float32 {
	n := b.Channels()
	switch pos := t.Start + row; {
	case row >= 0:
	case pos >= t.base:
		return t.State.Record(t.head, pos).Input
	default:
		return t.State.Inputs(t.head)[(b.Taps-1+pos-t.base)*n:][:n]
	}
	return b.inAt(t, row)[:n]
}

// inAt returns the columns of In of a task's key head.
func (b *Rows) inAt(t *task, row int) []float32 {
	return b.In[(t.First+row)*b.Shape.In+t.head*b.Width:][:b.Width]
}

// multiply computes the input of a short convolution, in place of its first factor.
func (b *Rows) multiply(t *task, row int) {
	in := b.inAt(t, row)
	first, second := in[:b.ValueDim], in[2*b.ValueDim:]
	for i := range first {
		first[i] *= second[i]
	}
}

// midAt returns q, k and v of a key head for a row of the batch.
func (b *Rows) midAt(row, head int) (q, k, v []float32) {
	n := b.Channels()
	x := b.mid[row*b.KeyHeads*n+head*n:][:n]
	return x[:b.KeyDim], x[b.KeyDim : 2*b.KeyDim], x[2*b.KeyDim:]
}

// convolve computes q, k and v of a key head and the gates of its value heads for one row.
func (b *Rows) convolve(t *task, row int) {
	at, n := t.First+row, b.Channels()
	x := b.mid[at*b.KeyHeads*n+t.head*n:][:n]
	clear(x)
	for tap := range b.Taps {
		weights := b.w.Conv[(tap*b.KeyHeads+t.head)*n:][:n]
		tensor.AddProduct(x, weights, b.inputAt(t, row+tap-b.Taps+1))
	}
	if b.w.ConvBias != nil {
		tensor.Add(x, b.w.ConvBias[t.head*n:][:n])
	}
	switch b.Kind {
	case recurrent.ShortConv:
		return
	case recurrent.GatedDelta:
		tensor.SiLUMul(x, x, b.ones)
		q, k, _ := b.midAt(at, t.head)
		tensor.RMSNorm(q, q, b.queryScale, normEps/float32(b.KeyDim))
		tensor.RMSNorm(k, k, b.keyScale, normEps/float32(b.KeyDim))
	case recurrent.Mamba2:
		tensor.SiLUMul(x, x, b.ones)
	}
	gates := b.Gates[at*2*b.ValueHeads:][:2*b.ValueHeads]
	for h := t.head * b.Group(); h < (t.head+1)*b.Group(); h++ {
		first, decay := &gates[h], &gates[b.ValueHeads+h]
		if b.Kind == recurrent.Mamba2 {
			if f := b.Factors.Dt; f != 0 {
				*first *= f
			}
			*first = b.bounded(f32.Softplus(*first + b.w.DtBias[h]))
			*decay = f32.Exp(b.w.Decay[h] * *first)
			continue
		}
		*first = 1 / (1 + f32.Exp(-*first))
		*decay = f32.Exp(b.w.Decay[h] * f32.Softplus(*decay+b.w.DtBias[h]))
	}
}

// bounded keeps dt within its bounds.
func (b *Rows) bounded(dt float32) float32 {
	if b.TimeStep == [2]float32{} {
		return dt
	}
	return min(max(dt, b.TimeStep[0]), b.TimeStep[1])
}

// update computes the update of the state s of value head h by a token.
func (b *Rows) update(u, s, k, v []float32, row, h int, decay float32) {
	first := b.Gates[row*2*b.ValueHeads+h]
	if b.Kind == recurrent.Mamba2 {
		for i := range u {
			u[i] = first * v[i]
		}
		return
	}
	tensor.DeltaPredict(u, s, k, decay)
	tensor.DeltaUpdate(u, v, u, first)
}

// value returns the part of v that belongs to a value head of the group.
func (b *Rows) value(v []float32, value int) []float32 { return v[value*b.ValueDim:][:b.ValueDim] }

// decayAt returns the decay of value head h for a row of the batch.
func (b *Rows) decayAt(row, h int) float32 { return b.Gates[(row*2+1)*b.ValueHeads+h] }

// advance runs a prompt's rows through the state of one value head.
func (b *Rows) advance(t *task) {
	h := t.head*b.Group() + t.value
	s, u := t.State.Matrix(t.head, t.value), make([]float32, b.ValueDim)
	for i := range t.n {
		row := t.First + i
		q, k, v := b.midAt(row, t.head)
		v = b.value(v, t.value)
		if b.Kind != recurrent.ShortConv {
			decay := b.decayAt(row, h)
			b.update(u, s, k, v, row, h, decay)
			tensor.DeltaAdvance(b.outAt(row, h), s, k, q, u, decay)
		}
		b.finish(t, i, t.value, v)
	}
	if t.value == 0 { // all rows have been convolved
		for row := max(0, t.n-b.Taps+1); row < t.n; row++ {
			t.State.Push(t.head, b.inputAt(t, row))
		}
	}
}

// outAt returns the output of value head h for a row of the batch.
func (b *Rows) outAt(row, h int) []float32 {
	return b.Out[row*b.Shape.Out+h*b.ValueDim:][:b.ValueDim]
}

// finish ends the output of a value head. v is its value, or the result of a short convolution.
func (b *Rows) finish(t *task, row, value int, v []float32) {
	h := t.head*b.Group() + value
	out, z := b.outAt(t.First+row, h), b.inAt(t, row)[b.Channels()+value*b.ValueDim:][:b.ValueDim]
	switch b.Kind {
	case recurrent.GatedDelta:
		tensor.RMSNorm(out, out, b.w.Norm, b.NormEps)
		tensor.SiLUMul(out, z, out)
	case recurrent.Mamba2:
		for i := range out {
			out[i] += float32(b.w.D[h] * v[i])
		}
		if b.Factors.Z != 0 {
			tensor.Scale(z, b.Factors.Z)
		}
		tensor.SiLUMul(out, z, out)
	case recurrent.ShortConv:
		for i := range out {
			out[i] = z[i] * v[i]
		}
	}
}

// Normalize normalizes the outputs of n rows from first on, if that takes the heads of a whole group. A
// row has the outputs of all heads.
func (b *Rows) Normalize(w *Weights, first, n int, parallel func(n int, f func(i int))) {
	if b.Kind != recurrent.Mamba2 || w.Norm == nil {
		return
	}
	b.w = w
	b.inputs = append(b.inputs[:0], task{row: first})
	parallel(n, b.normalizeAt)
}

func (b *Rows) normalize(i int) {
	n := b.ValueHeads * b.ValueDim
	out, size := b.Out[(b.inputs[0].row+i)*b.Shape.Out:][:n], n/b.Groups
	for at := 0; at < n; at += size {
		tensor.RMSNorm(out[at:at+size], out[at:at+size], b.w.Norm[at:at+size], b.NormEps)
	}
}
