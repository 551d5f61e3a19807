package accelerator

import (
	"encoding/binary"

	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/actors/layer/experts"
	"github.com/shoal-llm/shoal/actors/layer/router"
	"github.com/shoal-llm/shoal/internal/engine/cuda"
	"github.com/shoal-llm/shoal/internal/engine/cuda/launch"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// The host chooses the experts of each token, from the router's outputs: a layer with experts waits for the card
// once. A pair is a token and an expert chosen for it. Pairs are in the order of experts, then of tokens, as in
// layer.Processor.

// expertWeights holds the experts of a layer.
type expertWeights struct {
	router, factor           launch.Weight // factor without rows: none
	bias                     []float32     // of the router, or nil
	gateUp, down             joined        // gate and up of each expert in turn; down of each
	sharedGateUp, sharedDown joined        // without parts: there are no shared experts
}

// uploadExperts copies the experts of a layer to the card.
func (l *weights) uploadExperts(e *experts.Weights) {
	m := &l.allocations
	x := &expertWeights{bias: e.Bias, router: matrix(m, e.Router), factor: matrix(m, e.SharedFactor)}
	bank := func(banks ...*tensor.Bank) (all []*tensor.Weight) {
		for i := range e.Router.Rows {
			for _, b := range banks {
				if b == nil { // this rank has no rows
					all = append(all, nil)
					continue
				}
				all = append(all, b.At(i))
			}
		}
		return all
	}
	pieces := [][]*tensor.Weight{bank(e.Gate, e.Up), bank(e.Down), {e.SharedGate, e.SharedUp}, {e.SharedDown}}
	for i, to := range []*joined{&x.gateUp, &x.down, &x.sharedGateUp, &x.sharedDown} {
		*to = upload(m, pack(pieces[i], make([][]float32, len(pieces[i]))))[0]
	}
	l.experts = x
}

// mixture is the memory for the experts of a step. T*PerToken rows are pairs.
type mixture struct {
	scores, factors cuda.Pointer // (T, experts), (T)
	x               activation   // (pairs, Hidden) inputs; plain is then their outputs
	gate, up        cuda.Pointer // (pairs, FFN)
	mid             activation   // (pairs, FFN)
	sharedGate      cuda.Pointer // (T, Shared)
	sharedUp        cuda.Pointer
	shared          activation   // (T, Shared)
	lists           cuda.Pointer // (pairs) tokens, (pairs) weights, (T, PerToken) pairs
	host            *cuda.Pinned // lists, then scores

	first   []int32 // (experts+1) first pair of each expert
	choice  []float32
	chosen  []int32
	weights []float32
}

func newMixture(b *Backend, maxRows int) *mixture {
	d := &b.dims.MoE
	if d.Experts == 0 {
		return nil
	}
	m, rows, pairs := &b.memory, int64(maxRows), maxRows*d.PerToken
	floats := func(rows int64, cols int) cuda.Pointer { return m.alloc(4 * rows * int64(cols)) }
	x := &mixture{scores: floats(rows, d.Experts), factors: floats(rows, 1), x: m.activation(pairs, b.dims.Hidden),
		mid:  m.activation(pairs, d.FFN),
		gate: floats(int64(pairs), d.FFN), up: floats(int64(pairs), d.FFN), lists: floats(3, pairs),
		first: make([]int32, d.Experts+1), choice: make([]float32, d.Experts), chosen: make([]int32, pairs), weights: make([]float32, pairs)}
	if d.Shared > 0 {
		x.sharedGate, x.sharedUp, x.shared = floats(rows, d.Shared), floats(rows, d.Shared), m.activation(maxRows, d.Shared)
	}
	b.card.Must(m.err)
	var err error
	x.host, err = b.card.Pin(4 * (3*pairs + maxRows*d.Experts))
	b.card.Must(err)
	return x
}

// mixtureBytes returns the memory of newMixture.
func mixtureBytes(d layer.Dims, rows int64) int64 {
	pairs, f := rows*int64(d.MoE.PerToken), int64(d.MoE.FFN)
	width := func(cols int64) int64 { return 4*cols + cols*9/8 }
	hidden, shared := int64(d.Hidden), int64(d.MoE.Shared)
	return 4*rows*int64(d.MoE.Experts+1) + pairs*(width(hidden)+width(f)+8*f+12) + rows*(8*shared+width(shared))
}

func (m *mixture) close(b *Backend) {
	if m != nil {
		b.card.Must(m.host.Close())
	}
}

// route chooses the experts of all tokens, and uploads the lists of pairs.
func (b *Backend) route(e *expertWeights) {
	m, d, t := b.mix, &b.dims.MoE, b.batch.T
	k, pairs := d.PerToken, t*d.PerToken
	b.do(launch.Product{W: e.router, X: b.norms.plain, N: t, Y: m.scores, LdY: d.Experts})
	if e.factor.Rows > 0 {
		b.do(launch.Product{W: e.factor, X: b.norms.plain, N: t, Y: m.factors, LdY: 1})
	}
	b.ops.Start()
	lists, memory := m.host.Bytes()[:12*pairs], m.host.Bytes()[12*pairs:][:4*t*d.Experts]
	b.card.Must(b.card.Stream.Download(memory, m.scores))
	b.card.Wait()
	scores, chosen := cuda.Floats(memory), m.chosen[:pairs]
	clear(m.first)
	for i := range t {
		router.Route(&d.Router, scores[i*d.Experts:][:d.Experts], e.bias, m.choice, chosen[i*k:][:k], m.weights[i*k:][:k])
		for _, x := range chosen[i*k:][:k] {
			m.first[x+1]++
		}
	}
	for x := range d.Experts {
		if m.first[x+1] > 0 {
			b.batch.ExpertsRead++
		}
		m.first[x+1] += m.first[x]
	}
	next := append([]int32(nil), m.first...)
	for i, x := range chosen {
		p := next[x]
		next[x]++
		binary.LittleEndian.PutUint32(lists[4*p:], uint32(i/k))
		cuda.Floats(lists)[pairs+int(p)] = m.weights[i]
		binary.LittleEndian.PutUint32(lists[4*(2*pairs+i):], uint32(p))
	}
	b.card.Must(b.card.Stream.Upload(m.lists, lists))
}

// runs calls f with each chosen expert and its pairs.
func (m *mixture) runs(f func(expert int, pairs topology.Range)) {
	for e := range len(m.first) - 1 {
		if pairs := (topology.Range{Lo: int(m.first[e]), Hi: int(m.first[e+1])}); pairs.Len() > 0 {
			f(e, pairs)
		}
	}
}

// expertsUp computes this rank's columns of the activations of the chosen experts and of the shared ones.
func (b *Backend) expertsUp(w *weights) {
	e, m, d, pairs := w.experts, b.mix, &b.dims.MoE, b.batch.T*b.dims.MoE.PerToken
	b.route(e)
	if own := b.batch.ExpertColumns(b.batch.Rank); own.Len() > 0 {
		gather := func(to, from cuda.Pointer, words int) {
			b.do(launch.Gather{To: to, From: from, Rows: m.lists, N: pairs, Words: words})
		}
		h := b.dims.Hidden
		if e.gateUp.rounded() {
			gather(m.x.rounded.Bytes, b.norms.rounded.Bytes, h/4)
			gather(m.x.rounded.Scales, b.norms.rounded.Scales, h/tensor.BlockWidth)
		}
		if e.gateUp.plain() {
			gather(m.x.plain, b.norms.plain, h)
		}
		m.runs(func(x int, of topology.Range) {
			b.product(e.gateUp.whole(2*x), m.x, of, m.gate, own.Len(), 0)
			b.product(e.gateUp.whole(2*x+1), m.x, of, m.up, own.Len(), 0)
		})
		b.do(launch.Gate{Activation: b.dims.Activation, Gate: m.gate, Up: m.up, Ld: own.Len(), Out: m.gate, Rows: pairs, Cols: own.Len()})
		b.do(launch.Weigh{X: m.gate, Factors: m.lists.Add(4 * int64(pairs)), Rows: pairs, Cols: own.Len()})
		b.do(launch.CopyRows{To: m.mid.plain.Add(4 * int64(own.Lo)), LdTo: d.FFN, From: m.gate, LdFrom: own.Len(), Rows: pairs, Cols: own.Len()})
	}
	if own := b.batch.SharedColumns(b.batch.Rank); own.Len() > 0 {
		b.product(e.sharedGateUp.whole(0), b.norms, b.allRows(), m.sharedGate, own.Len(), 0)
		b.product(e.sharedGateUp.whole(1), b.norms, b.allRows(), m.sharedUp, own.Len(), 0)
		b.do(launch.Gate{
			Activation: b.dims.Activation, Gate: m.sharedGate, Up: m.sharedUp, Ld: own.Len(), Out: m.sharedGate,
			Rows: b.batch.T, Cols: own.Len(),
		})
		b.do(launch.CopyRows{
			To: m.shared.plain.Add(4 * int64(own.Lo)), LdTo: d.Shared, From: m.sharedGate, LdFrom: own.Len(),
			Rows: b.batch.T, Cols: own.Len(),
		})
	}
}

// expertsDown computes this rank's columns of the sum of shared experts and of each token's.
func (b *Backend) expertsDown(w *weights) {
	e, m, d, h, t := w.experts, b.mix, &b.dims.MoE, b.dims.Hidden, b.batch.T
	own := b.batch.Place.Slices[b.batch.Rank].Down
	if own.Len() > 0 {
		y, pairs := b.y.Add(4*int64(own.Lo)), t*d.PerToken
		if d.Shared > 0 {
			if e.sharedDown.rounded() {
				b.do(launch.Quantize{X: m.shared.plain, LdX: d.Shared, To: m.shared.rounded, Rows: t, Cols: d.Shared})
			}
			b.product(e.sharedDown.whole(0), m.shared, b.allRows(), y, h, 0)
		}
		if e.down.rounded() {
			b.do(launch.Quantize{X: m.mid.plain, LdX: d.FFN, To: m.mid.rounded, Rows: pairs, Cols: d.FFN})
		}
		m.runs(func(x int, of topology.Range) {
			b.product(e.down.whole(x), m.mid, of, m.x.plain.Add(4*int64(own.Lo)), h, 0)
		})
		o := launch.JoinExperts{
			Y: y, X: m.x.plain.Add(4 * int64(own.Lo)), Pairs: m.lists.Add(8 * int64(pairs)), PerToken: d.PerToken,
			Fresh: d.Shared == 0, Ld: h, Rows: t, Cols: own.Len(),
		}
		if e.factor.Rows > 0 {
			o.Factors = m.factors
		}
		b.do(o)
	}
	if !b.several() {
		b.addRows(w.postFFNorm, w.ffnFactor, b.allRows())
	}
}
