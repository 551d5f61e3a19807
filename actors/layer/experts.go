package layer

import (
	"sort"

	"github.com/shoal-llm/shoal/actors/layer/router"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/engine/tensor/f32"
	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
	"github.com/shoal-llm/shoal/topology"
)

// Experts are a socket's slices of a layer's mixture of experts: in both mappings the rows
// Slice.Part of every gate and up projection, and the rows Slice.Down of every down projection.
// Every socket has the whole router, in float32 whatever the type of the weights: all sockets must
// choose the same experts, and an error in its scores changes more than one in any other weight.
//
// Summing a tree of units would reduce every (token, expert) pair across sockets, PerToken times
// the bytes of a dense layer. The activations of experts are narrow, so both mappings gather them.
type Experts struct {
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

func (e *Experts) weights() []closer {
	var all []closer
	for _, m := range []*tensor.Weight{e.Router, e.SharedGate, e.SharedUp, e.SharedDown, e.SharedFactor} {
		if m != nil {
			all = append(all, m)
		}
	}
	for _, m := range []*tensor.Bank{e.Gate, e.Up, e.Down} {
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

func (b *Biases) bytes() int64 {
	if b == nil {
		return 0
	}
	return 4 * int64(len(b.Router)+len(b.Gate)+len(b.Up)+len(b.Down))
}

// DenseFFN is the vectors of a layer with both experts and a dense FFN, see model.DenseFFNNames.
type DenseFFN struct {
	RouterScale    []float32 // (Hidden), with the factor Hidden^-0.5
	ExpertScale    []float32 // (experts)
	SharedNorm     []float32 // (Hidden)
	Norm, PostNorm []float32 // (Hidden)
}

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

// mixture is the state of a batch within a layer with experts. A pair is a token and an expert
// chosen for it. Pairs are sorted by expert, then by token, so that an expert's pairs are
// consecutive rows. Every socket chooses the same experts and so has the same order.
type mixture struct {
	d       model.MoE
	experts *Experts // those of the current layer

	scores, choice []float32 // (T, experts)
	chosen         []int32   // (T, PerToken)
	weight         []float32 // (T, PerToken)
	pairWeight     []float32 // (pairs)
	first          []int32   // (experts+1): first pair of each expert
	pair           []int32   // (T, PerToken): the pair of a token's j-th expert
	x              []float32 // (pairs, hidden): input of the experts, quantized or not, then their output
	gate, up       []float32 // (pairs, FFN)
	mid            []float32 // (pairs, quantizedFloats(FFN)): quantized activations, on a single rank
	sharedGate     []float32 // (T, Shared)
	sharedUp       []float32
	sharedFactor   []float32 // (T): outputs of SharedFactor
	sharedSum      []float32 // (T, Hidden): output of a dense FFN in a layer with experts
	router         []float32 // (T, Hidden): input of the router there
	expertInput    []float32 // (T, Hidden): input of the experts there
	groups         []tensor.Group

	route, pack, combine     func(t int)
	normInputs, joinOutputs  func(t int)
	dense                    *DenseFFN
	firstRow                 int // of joinOutputs
	activate, activateShared func(r0, r1, t0, t1 int)
}

func (b *Processor) initMixture(maxRows int) {
	m, d := &b.mix, &b.Dims.MoE
	if d.Experts == 0 {
		return
	}
	m.d = *d
	pairs, e := maxRows*d.PerToken, d.Experts
	m.scores, m.choice = make([]float32, maxRows*e), make([]float32, maxRows*e)
	m.chosen, m.weight, m.pair, m.pairWeight = make([]int32, pairs), make([]float32, pairs), make([]int32, pairs), make([]float32, pairs)
	m.first = make([]int32, e+1)
	m.x = make([]float32, pairs*b.Dims.Hidden)
	m.gate, m.up = make([]float32, pairs*d.FFN), make([]float32, pairs*d.FFN)
	m.sharedGate, m.sharedUp, m.sharedFactor = make([]float32, maxRows*d.Shared), make([]float32, maxRows*d.Shared), make([]float32, maxRows)
	m.groups = make([]tensor.Group, 0, 2*e)
	k, h := d.PerToken, b.Dims.Hidden
	m.route = func(t int) {
		chosen, weight := m.chosen[t*k:(t+1)*k], m.weight[t*k:(t+1)*k]
		if m.experts.Biases != nil {
			tensor.Add(m.scores[t*e:(t+1)*e], m.experts.Biases.Router)
		}
		router.Route(&d.Router, m.scores[t*e:(t+1)*e], m.experts.Bias, m.choice[t*e:(t+1)*e], chosen, weight)
		if m.experts.DenseFFN != nil {
			for i, of := range chosen {
				weight[i] *= m.experts.DenseFFN.ExpertScale[of]
			}
		}
	}
	if d.DenseFFN {
		m.initDenseFFN(b, maxRows)
	}
	m.pack = func(t int) {
		pairs, x, ld := m.pair[t*k:(t+1)*k], m.input(b)[t*h:(t+1)*h], h
		if m.quantizedInput() {
			ld = quantizedFloats(h)
			first := m.x[int(pairs[0])*ld:][:ld]
			tensor.Quantize(floatBytes(first), 4*ld, m.experts.Gate.At(0).Type, x, h, h, 1)
			x, pairs = first, pairs[1:]
		}
		for _, p := range pairs {
			copy(m.x[int(p)*ld:][:ld], x)
		}
	}
	m.activate = func(r0, r1, p0, p1 int) {
		lo := b.batch.ExpertColumns(b.batch.Rank).Lo
		for p := p0; p < p1; p++ {
			gate, up := m.gate[p*d.FFN+lo+r0:p*d.FFN+lo+r1], m.up[p*d.FFN+lo+r0:p*d.FFN+lo+r1]
			if d.Ungated {
				b.Dims.Activation.Of(gate, gate)
				tensor.Scale(gate, m.pairWeight[p])
				continue
			}
			if biases := m.experts.Biases; biases != nil {
				first := m.expertOf(p)*d.FFN + lo + r0
				tensor.Add(gate, biases.Gate[first:])
				tensor.Add(up, biases.Up[first:])
			}
			if d.Router.OfInput {
				tensor.Scale(gate, m.pairWeight[p])
				tensor.Scale(up, m.pairWeight[p])
			}
			b.Dims.Activation.Mul(gate, gate, up)
			if m.experts.Biases == nil && !d.Router.OfInput { // otherwise combine does, or the weight is in
				tensor.Scale(gate, m.pairWeight[p])
			}
		}
		if ld := quantizedFloats(d.FFN); b.quantizesActivations() {
			to, of := floatBytes(m.mid[p0*ld+quantizedFloats(r0):]), m.experts.Down.At(0).Type
			tensor.Quantize(to, 4*ld, of, m.gate[p0*d.FFN+r0:], d.FFN, r1-r0, p1-p0)
		}
	}
	m.activateShared = func(r0, r1, t0, t1 int) {
		lo := b.batch.SharedColumns(b.batch.Rank).Lo
		for t := t0; t < t1; t++ {
			gate := m.sharedGate[t*d.Shared+lo+r0 : t*d.Shared+lo+r1]
			if d.Ungated {
				b.Dims.Activation.Of(gate, gate)
				continue
			}
			b.Dims.Activation.Mul(gate, gate, m.sharedUp[t*d.Shared+lo+r0:t*d.Shared+lo+r1])
		}
	}
	m.combine = func(t int) {
		own := b.batch.Place.Slices[b.batch.Rank].Down
		y := b.Y[t*h+own.Lo : t*h+own.Hi]
		if m.experts.SharedFactor != nil {
			tensor.Scale(y, 1/(1+f32.Exp(-m.sharedFactor[t])))
		}
		for j := range k {
			answer := m.x[int(m.pair[t*k+j])*h+own.Lo:][:len(y)]
			if biases := m.experts.Biases; biases != nil {
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
}

// ExpertColumns returns the columns of every expert's activations that a rank computes.
// SharedColumns returns those of the shared experts.
func (b *Batch) ExpertColumns(rank int) topology.Range { return b.part(rank, b.Dims.MoE.FFN) }
func (b *Batch) SharedColumns(rank int) topology.Range { return b.part(rank, b.Dims.MoE.Shared) }

func (b *Batch) part(rank, width int) topology.Range {
	return b.Place.Slices[rank].Part(tensor.Units(b.Dims.FFN), width)
}

// quantizedInput reports whether the experts' input is quantized. quantizesActivations reports
// whether the rank that computes the experts' activations quantizes them: on a single rank, which
// also multiplies them.
func (m *mixture) quantizedInput() bool { return quantizes(m.experts.Gate) }

func (b *Processor) quantizesActivations() bool {
	return b.batch.alone() && quantizes(b.mix.experts.Down)
}

// quantizes reports whether the matrices of a bank multiply quantized blocks.
func quantizes(of *tensor.Bank) bool {
	return of != nil && kernel.Quantized(of.At(0).Type) && of.At(0).Cols%tensor.BlockWidth == 0
}

// routeAll chooses every token's experts, sorts the pairs and packs the experts' input.
func (b *Processor) routeAll(e *Experts) {
	m, d := &b.mix, &b.Dims.MoE
	m.experts = e
	input := b.Norm
	if e.DenseFFN != nil {
		b.each(b.batch.T, m.normInputs)
		input = m.router
	}
	b.Pool.MatMul(m.scores, d.Experts, e.Router, input, b.Dims.Hidden, b.batch.T)
	if e.SharedFactor != nil {
		b.Pool.MatMul(m.sharedFactor, 1, e.SharedFactor, b.Norm, b.Dims.Hidden, b.batch.T)
	}
	b.each(b.batch.T, m.route)
	clear(m.first)
	chosen := m.chosen[:b.batch.T*d.PerToken]
	for _, e := range chosen {
		m.first[e]++
	}
	at := int32(0)
	for e, n := range m.first {
		if m.first[e], at = at, at+n; n > 0 {
			b.batch.ExpertsRead++
		}
	}
	for i, e := range chosen { // in token order; first[e] becomes the end of expert e's pairs
		p := m.first[e]
		m.first[e]++
		m.pair[i], m.pairWeight[p] = p, m.weight[i]
	}
	copy(m.first[1:], m.first) // each expert's end is the beginning of the next
	m.first[0] = 0
	b.each(b.batch.T, m.pack)
}

// expertOf is the expert of a pair.
func (m *mixture) expertOf(pair int) int {
	return sort.Search(m.d.Experts, func(e int) bool { return int(m.first[e+1]) > pair })
}

// runs yields every chosen expert and its pairs [lo, hi).
func (m *mixture) runs(yield func(expert, lo, hi int)) {
	for e := range m.d.Experts {
		if lo, hi := int(m.first[e]), int(m.first[e+1]); lo < hi {
			yield(e, lo, hi)
		}
	}
}

// multiply multiplies the queued groups by rows of the given width, quantized or not.
func (m *mixture) multiply(pool *tensor.Pool, x []float32, cols int, quantized bool) {
	switch {
	case len(m.groups) == 0:
	case quantized:
		pool.MatMulGroupsQuantized(m.groups, floatBytes(x), 4*quantizedFloats(cols))
	default:
		pool.MatMulGroups(m.groups, x, cols)
	}
	m.groups = m.groups[:0]
}

func (e *Experts) up(b *Processor) {
	m, d, h := &b.mix, &b.Dims.MoE, b.Dims.Hidden
	b.routeAll(e)
	if own := b.batch.ExpertColumns(b.batch.Rank); own.Len() > 0 {
		m.runs(func(expert, lo, hi int) {
			at := lo*d.FFN + own.Lo
			m.groups = append(m.groups, tensor.Group{Y: m.gate[at:], LdY: d.FFN, W: e.Gate.At(expert), T0: lo, T1: hi})
			if !d.Ungated {
				m.groups[len(m.groups)-1].Then = m.activate
				m.groups = append(m.groups, tensor.Group{Y: m.up[at:], LdY: d.FFN, W: e.Up.At(expert), T0: lo, T1: hi})
			}
		})
		if b.quantizesActivations() {
			m.mid = growF(m.mid, b.batch.T*d.PerToken*quantizedFloats(d.FFN))
		}
		m.multiply(b.Pool, m.x, h, m.quantizedInput())
		if d.Ungated { // products end in an activation only in pairs
			b.each(b.batch.T*d.PerToken, func(p int) { m.activate(0, own.Len(), p, p+1) })
		}
	}
	if own := b.batch.SharedColumns(b.batch.Rank); own.Len() > 0 {
		b.products = append(b.products, tensor.Product{Y: m.sharedGate[own.Lo:], LdY: d.Shared, W: e.SharedGate, R1: own.Len()})
		if !d.Ungated {
			b.products[0].Then = m.activateShared
			b.products = append(b.products, tensor.Product{Y: m.sharedUp[own.Lo:], LdY: d.Shared, W: e.SharedUp, R1: own.Len()})
		}
		b.Pool.MatMulMany(b.products, b.Norm, h, b.batch.T)
		b.products = b.products[:0]
		if d.Ungated {
			b.each(b.batch.T, func(t int) { m.activateShared(0, own.Len(), t, t+1) })
		}
	}
}

func (e *Experts) down(b *Processor) {
	m, d, h := &b.mix, &b.Dims.MoE, b.Dims.Hidden
	own := b.batch.Place.Slices[b.batch.Rank].Down
	if own.Len() == 0 {
		return
	}
	if d.Shared > 0 {
		y := b.Y
		if d.DenseFFN {
			y = m.sharedSum
		}
		b.Pool.MatMul(y[own.Lo:], h, e.SharedDown, m.sharedGate, d.Shared, b.batch.T)
	}
	m.runs(func(expert, lo, hi int) {
		m.groups = append(m.groups, tensor.Group{Y: m.x[lo*h+own.Lo:], LdY: h, W: e.Down.At(expert), T0: lo, T1: hi})
	})
	if b.quantizesActivations() {
		m.multiply(b.Pool, m.mid, d.FFN, true)
	} else {
		m.multiply(b.Pool, m.gate, d.FFN, false)
	}
	b.each(b.batch.T, m.combine)
}
