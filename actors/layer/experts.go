package layer

import (
	"github.com/shoal-llm/shoal/model"
	"github.com/shoal-llm/shoal/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// Experts are a socket's slices of a layer's mixture of experts: in either
// mapping the rows Slice.Part of every gate and up, and the rows Slice.Down of
// every down projection. The router is whole on every socket and float32 whatever
// the weights are: all sockets must choose alike, and its scores decide more than
// any weight.
//
// A tree of units over every (token, expert) pair would have to be reduced across
// sockets pair by pair, PerToken times the bytes of a dense layer; activations of
// experts are narrow, so they are gathered instead, in either mapping.
type Experts struct {
	Router                           *tensor.Weight // (experts, hidden)
	Bias                             []float32      // (experts), or nil
	Gate, Up, Down                   *tensor.Bank   // nil where this socket has no rows
	SharedGate, SharedUp, SharedDown *tensor.Weight // of the shared experts; nil likewise, or without any
}

func (e *Experts) weights() []closer {
	var all []closer
	for _, m := range []*tensor.Weight{e.Router, e.SharedGate, e.SharedUp, e.SharedDown} {
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

// The stages that experts have in place of gateUp, exchangeFFN and projectDown.
var (
	// expertsUp: router, then gate and up of this rank's columns of every chosen expert,
	// w*SiLU(gate)*up; the same of the shared experts, without a weight.
	expertsUp = compute("experts-up", FFN, func(w *Weights, b *Processor) { w.Experts.up(b) })

	// exchangeExperts: activations of experts, whole to everybody.
	exchangeExperts = allGather("exchange-experts", func(b *Batch, rank int, yield func(Tile)) {
		d := &b.Dims.MoE
		yield(Tile{ExpertGate, topology.Range{Lo: 0, Hi: b.T * d.PerToken}, b.expertColumns(rank)})
		yield(Tile{SharedGate, b.all(), b.sharedColumns(rank)})
	})

	// expertsDown: this rank's rows of Y = shared + the sum over a token's experts, in
	// their order.
	expertsDown = compute("experts-down", FFN, func(w *Weights, b *Processor) { w.Experts.down(b) })
)

// mixture is the state of a batch within a layer with experts. A pair is a token
// and an expert that it chose; pairs lie in the order of their experts, and within
// one of their tokens, so that an expert's pairs are one run of rows. Every socket
// chooses alike and so has the same order.
type mixture struct {
	d       model.MoE
	experts *Experts // of the layer

	scores, choice []float32 // (T, experts)
	chosen         []int32   // (T, PerToken)
	weight         []float32 // (T, PerToken)
	first          []int32   // (experts+1): first pair of each expert
	pair           []int32   // (T, PerToken): the pair of a token's j-th expert
	x              []float32 // (pairs, hidden): what experts read, then what they answer
	gate, up       []float32 // (pairs, FFN)
	sharedGate     []float32 // (T, Shared)
	sharedUp       []float32
	groups         []tensor.Group

	route, activate, combine func(t int)
}

func (b *Processor) initMixture(maxRows int) {
	m, d := &b.mix, &b.Dims.MoE
	if d.Experts == 0 {
		return
	}
	m.d = *d
	pairs, e := maxRows*d.PerToken, d.Experts
	m.scores, m.choice = make([]float32, maxRows*e), make([]float32, maxRows*e)
	m.chosen, m.weight, m.pair = make([]int32, pairs), make([]float32, pairs), make([]int32, pairs)
	m.first = make([]int32, e+1)
	m.x = make([]float32, pairs*b.Dims.Hidden)
	m.gate, m.up = make([]float32, pairs*d.FFN), make([]float32, pairs*d.FFN)
	m.sharedGate, m.sharedUp = make([]float32, maxRows*d.Shared), make([]float32, maxRows*d.Shared)
	m.groups = make([]tensor.Group, 0, 2*e)
	k, h := d.PerToken, b.Dims.Hidden
	m.route = func(t int) {
		Route(&d.Router, m.scores[t*e:(t+1)*e], m.experts.Bias, m.choice[t*e:(t+1)*e], m.chosen[t*k:(t+1)*k], m.weight[t*k:(t+1)*k])
	}
	m.activate = func(t int) {
		own := b.expertColumns(b.Rank)
		for j := t * k; own.Len() > 0 && j < (t+1)*k; j++ {
			p := int(m.pair[j])
			gate := m.gate[p*d.FFN+own.Lo : p*d.FFN+own.Hi]
			tensor.SiLUMul(gate, gate, m.up[p*d.FFN+own.Lo:p*d.FFN+own.Hi])
			tensor.Scale(gate, m.weight[j])
		}
		if own = b.sharedColumns(b.Rank); own.Len() > 0 {
			gate := m.sharedGate[t*d.Shared+own.Lo : t*d.Shared+own.Hi]
			tensor.SiLUMul(gate, gate, m.sharedUp[t*d.Shared+own.Lo:t*d.Shared+own.Hi])
		}
	}
	m.combine = func(t int) {
		own := b.Place.Slices[b.Rank].Down
		y := b.Y[t*h+own.Lo : t*h+own.Hi]
		for j := range k {
			answer := m.x[int(m.pair[t*k+j])*h+own.Lo:][:len(y)]
			if j == 0 && d.Shared == 0 {
				copy(y, answer)
			} else {
				tensor.Add(y, answer)
			}
		}
	}
}

// expertColumns are the columns of every expert's activations that a rank
// computes, sharedColumns those of the shared experts.
func (b *Batch) expertColumns(rank int) topology.Range { return b.part(rank, b.Dims.MoE.FFN) }
func (b *Batch) sharedColumns(rank int) topology.Range { return b.part(rank, b.Dims.MoE.Shared) }

func (b *Batch) part(rank, width int) topology.Range {
	return b.Place.Slices[rank].Part(tensor.Units(b.Dims.FFN), width)
}

// routeAll chooses every token's experts, puts the pairs in order, and packs what
// the experts read.
func (b *Processor) routeAll(e *Experts) {
	m, d := &b.mix, &b.Dims.MoE
	m.experts = e
	b.Pool.MatMul(m.scores, d.Experts, e.Router, b.Norm, b.Dims.Hidden, b.T)
	b.each(b.T, m.route)
	clear(m.first)
	chosen := m.chosen[:b.T*d.PerToken]
	for _, e := range chosen {
		m.first[e]++
	}
	at := int32(0)
	for e, n := range m.first {
		if m.first[e], at = at, at+n; n > 0 {
			b.ExpertsRead++
		}
	}
	h := b.Dims.Hidden
	for i, e := range chosen { // in the order of tokens; first[e] becomes the end of e's run
		p := m.first[e]
		m.first[e]++
		m.pair[i] = p
		copy(m.x[int(p)*h:][:h], b.Norm[i/d.PerToken*h:])
	}
	copy(m.first[1:], m.first) // the ends are the beginnings of the next
	m.first[0] = 0
}

// group queues the pairs of every chosen expert for its matrix in the bank; row r
// of pair p goes to y[p*ld+col+r].
func (m *mixture) group(bank *tensor.Bank, y []float32, ld, col int) {
	for e := range m.d.Experts {
		if lo, hi := int(m.first[e]), int(m.first[e+1]); lo < hi {
			m.groups = append(m.groups, tensor.Group{Y: y[lo*ld+col:], LdY: ld, W: bank.At(e), T0: lo, T1: hi})
		}
	}
}

func (e *Experts) up(b *Processor) {
	m, d, h := &b.mix, &b.Dims.MoE, b.Dims.Hidden
	b.routeAll(e)
	if own := b.expertColumns(b.Rank); own.Len() > 0 {
		m.group(e.Gate, m.gate, d.FFN, own.Lo)
		m.group(e.Up, m.up, d.FFN, own.Lo)
		b.Pool.MatMulGroups(m.groups, m.x, h)
		m.groups = m.groups[:0]
	}
	if own := b.sharedColumns(b.Rank); own.Len() > 0 {
		b.products = append(b.products, tensor.Product{Y: m.sharedGate[own.Lo:], LdY: d.Shared, W: e.SharedGate, R1: own.Len()},
			tensor.Product{Y: m.sharedUp[own.Lo:], LdY: d.Shared, W: e.SharedUp, R1: own.Len()})
		b.Pool.MatMulMany(b.products, b.Norm, h, b.T)
		b.products = b.products[:0]
	}
	b.each(b.T, m.activate)
}

func (e *Experts) down(b *Processor) {
	m, d, h := &b.mix, &b.Dims.MoE, b.Dims.Hidden
	own := b.Place.Slices[b.Rank].Down
	if own.Len() == 0 {
		return
	}
	if d.Shared > 0 {
		b.Pool.MatMul(b.Y[own.Lo:], h, e.SharedDown, m.sharedGate, d.Shared, b.T)
	}
	m.group(e.Down, m.x, h, own.Lo)
	b.Pool.MatMulGroups(m.groups, m.gate, d.FFN)
	m.groups = m.groups[:0]
	b.each(b.T, m.combine)
}
