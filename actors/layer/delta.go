package layer

import (
	"math"
	"sync"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// Delta is the weights of a layer with the gated delta rule instead of attention (model/delta.go).
// With mapping Gather a socket has the rows Placement.DeltaRows of In, with Reduce all of them.
type Delta struct {
	In     *tensor.Weight // q, k, v and z of each key head in turn; nil if the socket has no rows
	Gates  *tensor.Weight // (2*value heads, Hidden): beta, then decay; whole, in float32
	Conv   []float32      // (Taps, key heads * Channels)
	Decay  []float32      // (value heads): -exp(A_log)
	DtBias []float32      // (value heads)
	Norm   []float32      // (ValueDim), of each value head's output
}

// NewDelta returns weights with their vectors. It replaces aLog by the decays, which it holds already
// if negated.
func NewDelta(aLog, dtBias, norm []float32, negated bool) *Delta {
	for i, a := range aLog {
		if !negated {
			aLog[i] = -tensor.Exp(a)
		}
	}
	return &Delta{Decay: aLog, DtBias: dtBias, Norm: norm}
}

func (w *Delta) matrices() []*tensor.Weight {
	if w == nil {
		return nil
	}
	return []*tensor.Weight{w.In, w.Gates}
}

// RecurrentOf returns the shape of a model's recurrent states.
func RecurrentOf(c *model.Config) kvcache.Recurrent {
	d := &c.Delta
	return kvcache.Recurrent{Layers: c.RecurrentLayers(), KeyHeads: d.KeyHeads, ValueHeads: d.ValueHeads, KeyDim: d.KeyDim, ValueDim: d.ValueDim, Taps: d.Taps}
}

// deltaWidth returns the number of columns of DeltaIn for one key head.
func (d Dims) deltaWidth() int {
	return d.Recurrent.Channels() + d.Recurrent.Group()*d.Recurrent.ValueDim
}

func (d Dims) deltaIn() int  { return stride(d.Recurrent.KeyHeads * d.deltaWidth()) }
func (d Dims) deltaOut() int { return stride(d.Recurrent.ValueHeads * d.Recurrent.ValueDim) }

// DeltaRows returns the rows of the joint projection of the gated delta rule that a rank has.
func (d Dims) DeltaRows(p topology.Placement, rank int) topology.Range {
	r := d.Recurrent
	if p.Mapping == topology.Reduce {
		return topology.Range{Hi: r.KeyHeads * d.deltaWidth()}
	}
	return p.DeltaRows(rank, d.KVHeads, r.KeyHeads, d.deltaWidth(), tensor.Units(d.FFN))
}

// deltaRows returns the columns of DeltaIn that a rank computes with mapping Gather.
func (b *Batch) deltaRows(rank int) topology.Range { return b.Dims.DeltaRows(b.Place, rank) }

// deltaCols returns the columns of DeltaIn that belong to KV heads h, and deltaOutCols those of
// DeltaOut.
func (b *Batch) deltaCols(h topology.Range) topology.Range {
	return b.keyHeads(h, b.Dims.deltaWidth())
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

// deltaTask is a key head of a segment: rows of its inputs, or one value head of its state.
type deltaTask struct {
	s           *Segment
	state       *kvcache.State
	head, value int
	first, n    int // rows within the segment
	base        int // tokens in the state; later ones before the segment have records
}

// deltaBatch is the activations and tasks of layers with the gated delta rule.
type deltaBatch struct {
	b   *Processor
	w   *Delta
	in  []float32 // (T, deltaIn) q, k, v and z of each key head
	mid []float32 // (T, key heads * Channels) q, k and v after the convolution, q and k normalized
	// gates holds the outputs of Delta.Gates, then beta and decay, of each value head.
	gates []float32 // (T, 2*value heads)
	out   []float32 // (T, deltaOut)

	ones, queryScale, keyScale []float32

	decodes, inputs, states []deltaTask
	decode, input, state    func(i int)
}

// deltaNormEps is the epsilon of the normalization of queries and keys, independent of the norms.
const deltaNormEps = 1e-6

// deltaInputRows is the number of a prompt's rows per task of the convolution.
const deltaInputRows = 16

func (b *Processor) initDelta(maxRows int) {
	r, l := b.Dims.Recurrent, &b.delta
	if r.Layers == 0 {
		return
	}
	l.b = b
	l.in, l.mid = make([]float32, maxRows*b.Dims.deltaIn()), make([]float32, maxRows*r.KeyHeads*r.Channels())
	l.gates, l.out = make([]float32, maxRows*2*r.ValueHeads), make([]float32, maxRows*b.Dims.deltaOut())
	fill := func(n int, v float64) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(v)
		}
		return x
	}
	// x/sqrt(sum x² + eps) is RMSNorm of x with eps/n and the weight 1/sqrt(n). Queries are also
	// scaled by 1/sqrt(n).
	n := float64(r.KeyDim)
	l.ones, l.keyScale, l.queryScale = fill(r.Channels(), 1), fill(r.KeyDim, 1/math.Sqrt(n)), fill(r.KeyDim, 1/n)
	l.decode = func(i int) { l.decodeHead(l.decodes[i]) }
	l.input = func(i int) {
		t := l.inputs[i]
		for row := t.first; row < t.first+t.n; row++ {
			l.convolve(t, row)
		}
	}
	l.state = func(i int) { l.advance(l.states[i]) }
}

func (w *Delta) project(b *Processor) {
	own := b.batch.deltaRows(b.batch.Rank)
	b.delta.project(w.In, b.batch.all(), topology.Range{Hi: own.Len()}, own.Lo)
	b.delta.projectGates(w)
}

func (w *Delta) projectOwn(b *Processor) {
	all := topology.Range{Hi: b.Dims.Recurrent.KeyHeads * b.Dims.deltaWidth()}
	b.delta.project(w.In, b.batch.decodeRows(b.batch.Rank), all, 0)
	h := b.batch.deltaCols(b.batch.Place.Slices[b.batch.Rank].KVHeads)
	b.delta.project(w.In, topology.Range{Lo: b.batch.decode, Hi: b.batch.T}, panelRows(h.Lo, h.Hi, all.Hi), 0)
	b.delta.projectGates(w)
}

// project multiplies rows out of the matrix by the norms of tokens t. Row r goes to column col+r.
func (l *deltaBatch) project(m *tensor.Weight, t, out topology.Range, col int) {
	if m == nil || t.Len() == 0 || out.Len() == 0 {
		return
	}
	b, ld := l.b, l.b.Dims.deltaIn()
	b.Pool.MatMulRows(l.in[t.Lo*ld+col:], ld, m, out.Lo, out.Hi, b.Norm[t.Lo*b.Dims.Hidden:], b.Dims.Hidden, t.Len())
}

func (l *deltaBatch) projectGates(w *Delta) {
	l.b.Pool.MatMul(l.gates, 2*l.b.Dims.Recurrent.ValueHeads, w.Gates, l.b.Norm, l.b.Dims.Hidden, l.b.batch.T)
}

// run computes the outputs of this rank's heads and advances their states.
func (w *Delta) run(index int, b *Processor) {
	l := &b.delta
	l.w, l.decodes, l.inputs, l.states = w, l.decodes[:0], l.inputs[:0], l.states[:0]
	l.eachState(index, func(s *Segment, state *kvcache.State) {
		if err := state.Prompt(s.Start); err != nil && s.Prefill {
			panic(err)
		}
		for head := state.Heads().Lo; head < state.Heads().Hi; head++ {
			if !s.Prefill {
				l.decodes = append(l.decodes, deltaTask{s: s, state: state, head: head, base: state.Committed()})
				continue
			}
			for first := 0; first < s.N; first += deltaInputRows {
				l.inputs = append(l.inputs, deltaTask{s: s, state: state, head: head, first: first, n: min(deltaInputRows, s.N-first), base: s.Start})
			}
			for v := range b.Dims.Recurrent.Group() {
				l.states = append(l.states, deltaTask{s: s, state: state, head: head, value: v, n: s.N, base: s.Start})
			}
		}
	})
	b.Pool.Run(len(l.decodes), l.decode)
	b.Pool.Run(len(l.inputs), l.input)
	b.Pool.Run(len(l.states), l.state)
	l.eachState(index, func(s *Segment, state *kvcache.State) {
		if s.Prefill {
			state.Advanced(s.Start + s.N)
			return
		}
		state.Advanced(state.Committed())
	})
}

// eachState calls f with the states of this rank's heads of each segment.
func (l *deltaBatch) eachState(index int, f func(*Segment, *kvcache.State)) {
	for i := range l.b.batch.Segments {
		s := &l.b.batch.Segments[i]
		if h := l.b.batch.heads(s, l.b.batch.Rank); s.Cache != nil {
			for head := h.Lo; head < h.Hi; head++ {
				f(s, s.Cache.State(index, head))
			}
		}
	}
}

// inputAt returns the convolution's inputs of a key head for a row of a task's segment. Rows before
// the segment come from records or from the state.
func (l *deltaBatch) inputAt(t deltaTask, row int) []float32 {
	d := l.b.Dims
	n := d.Recurrent.Channels()
	switch pos := t.s.Start + row; {
	case row >= 0:
	case pos >= t.base:
		return t.state.Record(t.head, pos).Input
	default:
		return t.state.Inputs(t.head)[(d.Recurrent.Taps-1+pos-t.base)*n:][:n]
	}
	return l.in[(t.s.First+row)*d.deltaIn()+t.head*d.deltaWidth():][:n]
}

// midAt returns q, k and v of a key head for a row of the batch.
func (l *deltaBatch) midAt(row, head int) (q, k, v []float32) {
	r := l.b.Dims.Recurrent
	n := r.Channels()
	x := l.mid[row*r.KeyHeads*n+head*n:][:n]
	return x[:r.KeyDim], x[r.KeyDim : 2*r.KeyDim], x[2*r.KeyDim:]
}

// convolve computes q, k and v of a key head and the gates of its value heads for one row.
func (l *deltaBatch) convolve(t deltaTask, row int) {
	r := l.b.Dims.Recurrent
	at, n := t.s.First+row, r.Channels()
	x := l.mid[at*r.KeyHeads*n+t.head*n:][:n]
	clear(x)
	for tap := range r.Taps {
		weights := l.w.Conv[(tap*r.KeyHeads+t.head)*n:][:n]
		tensor.AddProduct(x, weights, l.inputAt(t, row+tap-r.Taps+1))
	}
	tensor.SiLUMul(x, x, l.ones)
	q, k, _ := l.midAt(at, t.head)
	tensor.RMSNorm(q, q, l.queryScale, deltaNormEps/float32(r.KeyDim))
	tensor.RMSNorm(k, k, l.keyScale, deltaNormEps/float32(r.KeyDim))
	gates := l.gates[at*2*r.ValueHeads:][:2*r.ValueHeads]
	for h := t.head * r.Group(); h < (t.head+1)*r.Group(); h++ {
		beta, decay := &gates[h], &gates[r.ValueHeads+h]
		*beta = 1 / (1 + tensor.Exp(-*beta))
		*decay = tensor.Exp(l.w.Decay[h] * tensor.Softplus(*decay+l.w.DtBias[h]))
	}
}

// advance runs a prompt's rows through the state of one value head.
func (l *deltaBatch) advance(t deltaTask) {
	r, h := l.b.Dims.Recurrent, t.head*l.b.Dims.Recurrent.Group()+t.value
	s, u := t.state.Matrix(t.head, t.value), make([]float32, r.ValueDim)
	for row := t.s.First; row < t.s.First+t.n; row++ {
		q, k, v := l.midAt(row, t.head)
		beta, decay := l.gates[row*2*r.ValueHeads+h], l.gates[(row*2+1)*r.ValueHeads+h]
		tensor.DeltaPredict(u, s, k, decay)
		tensor.DeltaUpdate(u, v[t.value*r.ValueDim:][:r.ValueDim], u, beta)
		tensor.DeltaAdvance(l.outAt(row, h), s, k, q, u, decay)
		l.finish(row, t.head, t.value)
	}
	if t.value == 0 { // all rows have been convolved
		for row := max(0, t.n-r.Taps+1); row < t.n; row++ {
			t.state.Push(t.head, l.inputAt(t, row))
		}
	}
}

// decodeHead computes the decoded tokens of a segment for one key head. The state stays that of the
// tokens that count; each token leaves a record.
func (l *deltaBatch) decodeHead(t deltaTask) {
	r := l.b.Dims.Recurrent
	t.state.Settle(t.head, l.outAt(t.s.First, t.head*r.Group()))
	// A single token after those that count reads the state. Others need a copy that advances.
	single := t.s.N == 1 && t.s.Start == t.base
	var copies *[]float32
	if !single {
		copies = deltaStates.Get().(*[]float32)
		defer deltaStates.Put(copies)
		*copies = l.advanced(t, (*copies)[:0])
	}
	for i := range t.s.N {
		row := t.s.First + i
		l.convolve(t, i)
		q, k, v := l.midAt(row, t.head)
		record := t.state.Record(t.head, t.s.Start+i)
		copy(record.Input, l.inputAt(t, i))
		copy(record.Key, k)
		for j := range r.Group() {
			h := t.head*r.Group() + j
			decay, u, s := l.gates[(row*2+1)*r.ValueHeads+h], record.Update(j), t.state.Matrix(t.head, j)
			if !single {
				s = (*copies)[j*len(s):][:len(s)]
			}
			record.Decay[j] = decay
			tensor.DeltaPredict(u, s, k, decay)
			tensor.DeltaUpdate(u, v[j*r.ValueDim:][:r.ValueDim], u, l.gates[row*2*r.ValueHeads+h])
			if single {
				tensor.DeltaRead(l.outAt(row, h), s, k, q, u, decay)
			} else {
				tensor.DeltaAdvance(l.outAt(row, h), s, k, q, u, decay)
			}
			l.finish(row, t.head, j)
		}
	}
}

var deltaStates = sync.Pool{New: func() any { return new([]float32) }}

// advanced appends copies of the states of a key head after the last token before a segment.
func (l *deltaBatch) advanced(t deltaTask, to []float32) []float32 {
	r := l.b.Dims.Recurrent
	out := l.outAt(t.s.First, t.head*r.Group())
	for v := range r.Group() {
		s := t.state.Matrix(t.head, v)
		to = append(to, s...)
		s = to[len(to)-len(s):]
		for pos := t.base; pos < t.s.Start; pos++ {
			record := t.state.Record(t.head, pos)
			tensor.DeltaAdvance(out, s, record.Key, record.Key, record.Update(v), record.Decay[v])
		}
	}
	return to
}

// outAt returns the output of value head h for a row of the batch.
func (l *deltaBatch) outAt(row, h int) []float32 {
	n := l.b.Dims.Recurrent.ValueDim
	return l.out[row*l.b.Dims.deltaOut()+h*n:][:n]
}

// finish normalizes the output of a value head and multiplies it by SiLU(z).
func (l *deltaBatch) finish(row, head, value int) {
	d := l.b.Dims
	r := d.Recurrent
	out := l.outAt(row, head*r.Group()+value)
	tensor.RMSNorm(out, out, l.w.Norm, d.NormEps)
	z := l.in[row*d.deltaIn()+head*d.deltaWidth()+r.Channels()+value*r.ValueDim:][:r.ValueDim]
	tensor.SiLUMul(out, z, out)
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
	b.Pool.MatMul(y, b.Dims.Hidden, w.O, b.delta.out[t.Lo*ld:], ld, t.Len())
}
