// Package experts computes mixtures of experts on the processor: routing, experts, shared experts, and a dense
// FFN next to them.
package experts

import (
	"sort"

	"github.com/shoal-llm/shoal/actors/layer/router"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/engine/tensor/f32"
	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
	"github.com/shoal-llm/shoal/topology"
)

// Weights are a socket's slices of a layer's mixture of experts: in both mappings the rows
// Slice.Part of every gate and up projection, and the rows Slice.Down of every down projection. Every
// socket has the whole router, in float32 for every type of the weights. All sockets must choose the
// same experts, and an error of a score changes the result more than an error of any other weight.
//
// Summing a tree of units would reduce every (token, expert) pair over the sockets, which takes
// PerToken times the bytes of a dense layer. The activations of experts are narrow, so both mappings
// gather them.
type Weights struct {
	Router *tensor.Weight // (experts, hidden)
	Bias   []float32      // (experts), or nil

	// Gate, Up and Down are nil if this socket has no rows, and those of shared experts also if the model has
	// none. Experts without a gate are Down act(Gate h): they have no Up.
	Gate, Up, Down                   *tensor.Bank
	SharedGate, SharedUp, SharedDown *tensor.Weight

	SharedFactor *tensor.Weight // (1, hidden) in float32, whole: the shared output is multiplied by its sigmoid; or nil
	Biases       *Biases        // of the router and the experts; or nil
	DenseFFN     *DenseFFN      // the shared FFN is a dense one with norms of its own; or nil
}

// Matrices returns this socket's matrices of the router and the shared experts, and Banks those of the
// other experts.
func (w *Weights) Matrices() (all []*tensor.Weight) {
	for _, m := range [...]*tensor.Weight{w.Router, w.SharedGate, w.SharedUp, w.SharedDown, w.SharedFactor} {
		if m != nil {
			all = append(all, m)
		}
	}
	return all
}

func (w *Weights) Banks() (all []*tensor.Bank) {
	for _, m := range [...]*tensor.Bank{w.Gate, w.Up, w.Down} {
		if m != nil {
			all = append(all, m)
		}
	}
	return all
}

// Biases are the biases of a router and its experts, whole.
type Biases struct {
	Router   []float32 // (experts)
	Gate, Up []float32 // (experts, FFN)
	Down     []float32 // (experts, Hidden)
}

// Bytes returns the memory of the biases.
func (b *Biases) Bytes() int64 {
	if b == nil {
		return 0
	}
	return 4 * int64(len(b.Router)+len(b.Gate)+len(b.Up)+len(b.Down))
}

// DenseFFN has the vectors of a layer with both experts and a dense FFN (model.DenseFFNNames).
type DenseFFN struct {
	RouterScale    []float32 // (Hidden), with the factor Hidden^-0.5
	ExpertScale    []float32 // (experts)
	SharedNorm     []float32 // (Hidden)
	Norm, PostNorm []float32 // (Hidden)
}

// Shape is the dimensions of the layers with experts.
type Shape struct {
	model.MoE
	Hidden     int
	NormEps    float32
	Activation tensor.Activation
}

// Step is the part of a layer that a rank computes in the current step.
type Step struct {
	T       int            // tokens
	Alone   bool           // the rank computes all columns
	Experts topology.Range // columns of the activations of every expert
	Shared  topology.Range // columns of those of the shared experts
	Down    topology.Range // columns of the output
}

// Rows has the activations of a batch within a layer with experts. A pair is a token and an expert
// chosen for it. Pairs are sorted by expert, then by token, so that an expert's pairs are
// consecutive rows. Every socket chooses the same experts and so has the same order.
type Rows struct {
	Shape
	Gate       []float32 // (pairs, FFN)
	SharedGate []float32 // (T, Shared)
	SharedSum  []float32 // (T, Hidden): output of a dense FFN in a layer with experts

	pool     *tensor.Pool
	each     func(rows int, f func(int))
	residual []float32 // (T, Hidden)
	normed   []float32 // (T, Hidden)
	output   []float32 // (T, Hidden)
	step     Step
	w        *Weights // those of the current layer
	products []tensor.Product

	scores, choice []float32 // (T, experts)
	chosen         []int32   // (T, PerToken)
	weight         []float32 // (T, PerToken)
	pairWeight     []float32 // (pairs)
	first          []int32   // (experts+1): first pair of each expert
	pair           []int32   // (T, PerToken): the pair of a token's j-th expert
	x              []float32 // (pairs, hidden): input of the experts, quantized or not, then their output
	up             []float32 // (pairs, FFN)
	mid            []float32 // (pairs, blockFloats(FFN)): quantized activations, on a single rank
	sharedUp       []float32 // (T, Shared)
	sharedFactor   []float32 // (T): outputs of SharedFactor
	router         []float32 // (T, Hidden): input of the router next to a dense FFN
	expertInput    []float32 // (T, Hidden): input of the experts next to a dense FFN
	groups         []tensor.Group

	route, pack, combine     func(t int)
	normInputs, joinOutputs  func(t int)
	dense                    *DenseFFN
	firstRow                 int // of joinOutputs
	activate, activateShared func(r0, r1, t0, t1 int)
}

// New returns the rows of steps with at most maxRows tokens; nil if no layer has experts. residual, normed
// and output are the rows of the residual stream, of its norm and of a layer's output. each calls a function
// with each of 0 to rows-1, in parallel if that is worth it.
func New(shape Shape, maxRows int, pool *tensor.Pool, each func(rows int, f func(int)), residual, normed, output []float32) *Rows {
	if shape.Experts == 0 {
		return nil
	}
	m := &Rows{Shape: shape, pool: pool, each: each, residual: residual, normed: normed, output: output}
	d := &m.MoE
	pairs, e := maxRows*d.PerToken, d.Experts
	m.scores, m.choice = make([]float32, maxRows*e), make([]float32, maxRows*e)
	m.chosen, m.weight, m.pair, m.pairWeight = make([]int32, pairs), make([]float32, pairs), make([]int32, pairs), make([]float32, pairs)
	m.first = make([]int32, e+1)
	m.x = make([]float32, pairs*m.Hidden)
	m.Gate, m.up = make([]float32, pairs*d.FFN), make([]float32, pairs*d.FFN)
	m.SharedGate, m.sharedUp, m.sharedFactor = make([]float32, maxRows*d.Shared), make([]float32, maxRows*d.Shared), make([]float32, maxRows)
	m.groups = make([]tensor.Group, 0, 2*e)
	k, h := d.PerToken, m.Hidden
	m.route = func(t int) {
		chosen, weight := m.chosen[t*k:(t+1)*k], m.weight[t*k:(t+1)*k]
		if m.w.Biases != nil {
			tensor.Add(m.scores[t*e:(t+1)*e], m.w.Biases.Router)
		}
		router.Route(&d.Router, m.scores[t*e:(t+1)*e], m.w.Bias, m.choice[t*e:(t+1)*e], chosen, weight)
		if m.w.DenseFFN != nil {
			for i, of := range chosen {
				weight[i] *= m.w.DenseFFN.ExpertScale[of]
			}
		}
	}
	if d.DenseFFN {
		m.initDenseFFN(maxRows)
	}
	m.pack = func(t int) {
		pairs, x, ld := m.pair[t*k:(t+1)*k], m.input()[t*h:(t+1)*h], h
		if m.quantizedInput() {
			ld = blockFloats(h)
			first := m.x[int(pairs[0])*ld:][:ld]
			tensor.Quantize(tensor.FloatBytes(first), 4*ld, m.w.Gate.At(0).Type, x, h, h, 1)
			x, pairs = first, pairs[1:]
		}
		for _, p := range pairs {
			copy(m.x[int(p)*ld:][:ld], x)
		}
	}
	m.activate = func(r0, r1, p0, p1 int) {
		lo := m.step.Experts.Lo
		for p := p0; p < p1; p++ {
			gate, up := m.Gate[p*d.FFN+lo+r0:p*d.FFN+lo+r1], m.up[p*d.FFN+lo+r0:p*d.FFN+lo+r1]
			if d.Ungated {
				m.Activation.Of(gate, gate)
				tensor.Scale(gate, m.pairWeight[p])
				continue
			}
			if biases := m.w.Biases; biases != nil {
				first := m.expertOf(p)*d.FFN + lo + r0
				tensor.Add(gate, biases.Gate[first:])
				tensor.Add(up, biases.Up[first:])
			}
			if d.Router.OfInput {
				tensor.Scale(gate, m.pairWeight[p])
				tensor.Scale(up, m.pairWeight[p])
			}
			m.Activation.Mul(gate, gate, up)
			if m.w.Biases == nil && !d.Router.OfInput { // otherwise combine does, or the weight is in
				tensor.Scale(gate, m.pairWeight[p])
			}
		}
		if ld := blockFloats(d.FFN); m.quantizesActivations() {
			to, of := tensor.FloatBytes(m.mid[p0*ld+blockFloats(r0):]), m.w.Down.At(0).Type
			tensor.Quantize(to, 4*ld, of, m.Gate[p0*d.FFN+r0:], d.FFN, r1-r0, p1-p0)
		}
	}
	m.activateShared = func(r0, r1, t0, t1 int) {
		lo := m.step.Shared.Lo
		for t := t0; t < t1; t++ {
			gate := m.SharedGate[t*d.Shared+lo+r0 : t*d.Shared+lo+r1]
			if d.Ungated {
				m.Activation.Of(gate, gate)
				continue
			}
			m.Activation.Mul(gate, gate, m.sharedUp[t*d.Shared+lo+r0:t*d.Shared+lo+r1])
		}
	}
	m.combine = func(t int) {
		own := m.step.Down
		y := m.output[t*h+own.Lo : t*h+own.Hi]
		if m.w.SharedFactor != nil {
			tensor.Scale(y, 1/(1+f32.Exp(-m.sharedFactor[t])))
		}
		for j := range k {
			answer := m.x[int(m.pair[t*k+j])*h+own.Lo:][:len(y)]
			if biases := m.w.Biases; biases != nil {
				tensor.Add(answer, biases.Down[int(m.chosen[t*k+j])*h+own.Lo:])
				tensor.Scale(answer, m.weight[t*k+j])
			}
			if j == 0 && (d.Shared == 0 || d.DenseFFN) {
				copy(y, answer)
			} else {
				tensor.Add(y, answer)
			}
		}
	}
	return m
}

// quantizedInput reports whether the experts' input is quantized. quantizesActivations reports
// whether the rank that computes the experts' activations quantizes them: on a single rank, which
// also multiplies them.
func (m *Rows) quantizedInput() bool { return quantizes(m.w.Gate) }

func (m *Rows) quantizesActivations() bool { return m.step.Alone && quantizes(m.w.Down) }

// blockFloats returns the size of a row's quantized blocks in units of float32.
func blockFloats(cols int) int { return tensor.QuantizedBytes(cols) / 4 }

// quantizes reports whether the matrices of a bank multiply quantized blocks.
func quantizes(of *tensor.Bank) bool {
	return of != nil && kernel.Quantized(of.At(0).Type) && of.At(0).Cols%tensor.BlockWidth == 0
}

// routeAll chooses every token's experts, sorts the pairs and packs the experts' input. It returns the number
// of experts that have pairs.
func (m *Rows) routeAll(e *Weights) (read int) {
	d := &m.MoE
	m.w = e
	input := m.normed
	if e.DenseFFN != nil {
		m.each(m.step.T, m.normInputs)
		input = m.router
	}
	m.pool.MatMul(m.scores, d.Experts, e.Router, input, m.Hidden, m.step.T)
	if e.SharedFactor != nil {
		m.pool.MatMul(m.sharedFactor, 1, e.SharedFactor, m.normed, m.Hidden, m.step.T)
	}
	m.each(m.step.T, m.route)
	clear(m.first)
	chosen := m.chosen[:m.step.T*d.PerToken]
	for _, e := range chosen {
		m.first[e]++
	}
	at := int32(0)
	for e, n := range m.first {
		if m.first[e], at = at, at+n; n > 0 {
			read++
		}
	}
	for i, e := range chosen { // in token order; first[e] becomes the end of expert e's pairs
		p := m.first[e]
		m.first[e]++
		m.pair[i], m.pairWeight[p] = p, m.weight[i]
	}
	copy(m.first[1:], m.first) // each expert's end is the beginning of the next
	m.first[0] = 0
	m.each(m.step.T, m.pack)
	return read
}

// expertOf returns the expert of a pair.
func (m *Rows) expertOf(pair int) int {
	return sort.Search(m.Experts, func(e int) bool { return int(m.first[e+1]) > pair })
}

// runs yields every chosen expert and its pairs [lo, hi).
func (m *Rows) runs(yield func(expert, lo, hi int)) {
	for e := range m.Experts {
		if lo, hi := int(m.first[e]), int(m.first[e+1]); lo < hi {
			yield(e, lo, hi)
		}
	}
}

// multiply multiplies the queued groups by rows of the given width, quantized or not.
func (m *Rows) multiply(x []float32, cols int, quantized bool) {
	switch {
	case len(m.groups) == 0:
	case quantized:
		m.pool.MatMulGroupsQuantized(m.groups, tensor.FloatBytes(x), 4*blockFloats(cols))
	default:
		m.pool.MatMulGroups(m.groups, x, cols)
	}
	m.groups = m.groups[:0]
}

// Up chooses the experts of all tokens and computes this rank's columns of their activations. It returns the
// number of experts whose weights were read.
func (m *Rows) Up(e *Weights, step Step) (read int) {
	d, h := &m.MoE, m.Hidden
	m.step = step
	read = m.routeAll(e)
	if own := m.step.Experts; own.Len() > 0 {
		m.runs(func(expert, lo, hi int) {
			at := lo*d.FFN + own.Lo
			m.groups = append(m.groups, tensor.Group{Y: m.Gate[at:], LdY: d.FFN, W: e.Gate.At(expert), T0: lo, T1: hi})
			if !d.Ungated {
				m.groups[len(m.groups)-1].Then = m.activate
				m.groups = append(m.groups, tensor.Group{Y: m.up[at:], LdY: d.FFN, W: e.Up.At(expert), T0: lo, T1: hi})
			}
		})
		if m.quantizesActivations() {
			if n := m.step.T * d.PerToken * blockFloats(d.FFN); cap(m.mid) < n {
				m.mid = make([]float32, n)
			}
		}
		m.multiply(m.x, h, m.quantizedInput())
		if d.Ungated { // products end in an activation only in pairs
			m.each(m.step.T*d.PerToken, func(p int) { m.activate(0, own.Len(), p, p+1) })
		}
	}
	if own := m.step.Shared; own.Len() > 0 {
		m.products = append(m.products, tensor.Product{Y: m.SharedGate[own.Lo:], LdY: d.Shared, W: e.SharedGate, R1: own.Len()})
		if !d.Ungated {
			m.products[0].Then = m.activateShared
			m.products = append(m.products, tensor.Product{Y: m.sharedUp[own.Lo:], LdY: d.Shared, W: e.SharedUp, R1: own.Len()})
		}
		m.pool.MatMulMany(m.products, m.normed, h, m.step.T)
		m.products = m.products[:0]
		if d.Ungated {
			m.each(m.step.T, func(t int) { m.activateShared(0, own.Len(), t, t+1) })
		}
	}
	return read
}

// Down computes this rank's columns of the output, after Up and the exchange of activations.
func (m *Rows) Down(e *Weights, step Step) {
	d, h := &m.MoE, m.Hidden
	m.step = step
	own := m.step.Down
	if own.Len() == 0 {
		return
	}
	if d.Shared > 0 {
		y := m.output
		if d.DenseFFN {
			y = m.SharedSum
		}
		m.pool.MatMul(y[own.Lo:], h, e.SharedDown, m.SharedGate, d.Shared, m.step.T)
	}
	m.runs(func(expert, lo, hi int) {
		m.groups = append(m.groups, tensor.Group{Y: m.x[lo*h+own.Lo:], LdY: h, W: e.Down.At(expert), T0: lo, T1: hi})
	})
	if m.quantizesActivations() {
		m.multiply(m.mid, d.FFN, true)
	} else {
		m.multiply(m.Gate, d.FFN, false)
	}
	m.each(m.step.T, m.combine)
}
