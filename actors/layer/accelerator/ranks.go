package accelerator

import (
	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/internal/engine/cuda"
	"github.com/shoal-llm/shoal/internal/engine/cuda/launch"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
	"github.com/shoal-llm/shoal/topology"
)

// The operations of one rank of several. Between them, exchange.go moves parts of activations to and
// from the other ranks, which may be cards or CPUs. Matrices of activations have all columns here, as
// those of layer.Processor, so that a tile has the same place on every rank.

// rank is the state of a backend as one rank of several.
type rank struct {
	layer.Share
	quantized bool // the weights are: products read rounded inputs

	heads  grown // (prompt rows, queries, keys and values of this rank's heads)
	nodes  grown // (nodes, T, Hidden) tree nodes of the down projection
	staged staging
	parts  *pinned     // nodes in host memory
	views  [][]float32 // the same, by node
	total  *pinned     // (T, Hidden) the sum of all ranks' nodes
}

// several reports whether the step has other ranks.
func (b *Backend) several() bool { return len(b.batch.Place.Slices) > 1 }

func (b *Backend) beginShare() {
	b.rank.Share, b.rank.quantized = b.batch.Share(), kernel.Quantized(b.batch.Type)
}

func (r *rank) close() {
	r.heads.close()
	r.nodes.close()
	r.staged.close()
}

// CloseReduced implements layer.Backend. It may come after the end of the card's context, which has freed all memory: then
// the driver returns an error.
func (b *Backend) CloseReduced() {
	for _, p := range []*pinned{b.rank.parts, b.rank.total} {
		if p != nil {
			_ = p.Close()
		}
	}
	b.rank.parts, b.rank.total, b.rank.views = nil, nil, nil
}

// rankOperations has the operations of one rank of several.
var rankOperations = [layer.Ops]func(b *Backend, w *weights){
	layer.OpNormAttention:      func(b *Backend, w *weights) { b.normRows(w.attnNorm, b.allRows()) },
	layer.OpNormOwnedAttention: func(b *Backend, w *weights) { b.normRows(w.attnNorm, b.rank.Owned[:]...) },
	layer.OpProjectQKV:         (*Backend).projectQKV,
	layer.OpProjectOwnQKV:      (*Backend).projectOwnQKV,
	layer.OpAttend:             (*Backend).attendShare,
	layer.OpProjectOut:         (*Backend).projectOut,
	layer.OpProjectOwnOut:      (*Backend).projectOwnOut,
	layer.OpAddAttention:       func(b *Backend, w *weights) { b.addRows(w.postAttnNorm, w.mixFactor, b.allRows()) },
	layer.OpAddOwnedAttention:  func(b *Backend, w *weights) { b.addRows(w.postAttnNorm, w.mixFactor, b.rank.Owned[:]...) },
	layer.OpNormFFN:            (*Backend).normAllFFN,
	layer.OpNormAllFFN:         (*Backend).normAllFFN,
	layer.OpAddNormFFN: func(b *Backend, w *weights) {
		b.addRows(w.postAttnNorm, w.mixFactor, b.allRows())
		b.normAllFFN(w)
	},
	layer.OpAddNormOwnedFFN: func(b *Backend, w *weights) {
		b.addRows(w.postAttnNorm, w.mixFactor, b.rank.Owned[:]...)
		b.normRows(w.ffnNorm, b.rank.Owned[:]...)
	},
	layer.OpGateUp:       (*Backend).gateShare,
	layer.OpProjectDown:  (*Backend).projectDown,
	layer.OpProjectUnits: (*Backend).projectUnits,
	layer.OpAddFFN:       func(b *Backend, w *weights) { b.addFFN(w, b.allRows()) },
	layer.OpAddOwnedFFN:  func(b *Backend, w *weights) { b.addFFN(w, b.rank.Owned[:]...) },
	layer.OpExpertsUp:    (*Backend).expertsUp,
	layer.OpExpertsDown:  (*Backend).expertsDown,
}

func (b *Backend) allRows() topology.Range { return topology.Range{Lo: 0, Hi: b.batch.T} }

// normRows computes the RMS norm of rows of x, rounded if the weights are quantized.
func (b *Backend) normRows(weight cuda.Pointer, rows ...topology.Range) {
	for _, r := range rows {
		if r.Len() > 0 {
			b.norm(weight, b.rowsOf(b.x, r.Lo), r.Len(), b.input(b.norms, r.Lo), !b.rank.quantized, b.rank.quantized)
		}
	}
}

// normAllFFN computes the norm before the FFN or the experts, whose router reads numbers that are not rounded.
func (b *Backend) normAllFFN(w *weights) {
	if w.experts != nil {
		b.norm(w.ffnNorm, b.x, b.batch.T, b.norms, true, b.rank.quantized)
		return
	}
	b.normRows(w.ffnNorm, b.allRows())
}

// rowsOf returns the address of a row of a matrix of the width of the residual stream.
func (b *Backend) rowsOf(p cuda.Pointer, row int) cuda.Pointer {
	return p.Add(4 * int64(row) * int64(b.dims.Hidden))
}

// product multiplies rows of the input by w. Output column c of row i goes to y[i*ld+c].
func (b *Backend) product(w launch.Weight, in activation, rows topology.Range, y cuda.Pointer, ld int, bias cuda.Pointer) {
	if w.Rows == 0 || rows.Len() == 0 {
		return
	}
	x := b.input(in, rows.Lo)
	b.do(launch.Product{W: w, X: x.plain, Rounded: x.rounded, N: rows.Len(), Y: y.Add(4 * int64(rows.Lo) * int64(ld)), LdY: ld, Bias: bias})
}

// columns multiplies rows of the input by the whole part of matrix i that this rank holds. Its output
// columns are those of the model from `at` on, and go to y from column `to` on.
func (b *Backend) columns(j joined, i int, in activation, rows topology.Range, y cuda.Pointer, ld, to, at int) {
	if m := j.matrices[i]; m.rows > 0 {
		b.product(j.rows(i, 0, m.rows), in, rows, y.Add(4*int64(to)), ld, offset(m.bias, at))
	}
}

// offset returns the address of element n of a vector, or 0 of none.
func offset(p cuda.Pointer, n int) cuda.Pointer {
	if p == 0 {
		return 0
	}
	return p.Add(4 * int64(n))
}

// round rounds rows of a, if products read rounded inputs.
func (b *Backend) round(a activation, rows ...topology.Range) {
	if !b.rank.quantized {
		return
	}
	for _, r := range rows {
		if x := b.input(a, r.Lo); r.Len() > 0 {
			b.card.Do(launch.Quantize{X: x.plain, LdX: a.cols, To: x.rounded, Rows: r.Len(), Cols: a.cols})
		}
	}
}

// roundBefore rounds an input of a product, unless ranks exchange it rounded.
func (b *Backend) roundBefore(a activation, rows ...topology.Range) {
	if !b.rank.Quantized {
		b.round(a, rows...)
	}
}

// roundAfter rounds an activation that ranks exchange rounded, after this rank has computed its
// columns. It rounds whole rows: the columns of others are replaced when they arrive.
func (b *Backend) roundAfter(a activation, rows ...topology.Range) {
	if b.rank.Quantized {
		b.round(a, rows...)
	}
}

func (b *Backend) projectQKV(w *weights) {
	s := &b.rank.Slice
	for i, at := range [...]int{s.Q.Lo, s.K.Lo, s.V.Lo} {
		b.columns(w.qkv, i, b.norms, b.allRows(), b.qkv, b.qkvWidth(), b.rank.QKV[i].Lo, at)
	}
}

// projectOwnQKV multiplies whole matrices for this rank's decode rows, and the rows of its heads for
// all prompt rows. They begin and end with whole panels of weights.
func (b *Backend) projectOwnQKV(w *weights) {
	column := 0
	for i := range w.qkv.matrices {
		b.columns(w.qkv, i, b.norms, b.rank.Decode, b.qkv, b.qkvWidth(), column, 0)
		m, h := w.qkv.matrices[i], b.rank.Heads[i]
		if h.Len() > 0 {
			lo := (h.Lo - column) / launch.PanelRows * launch.PanelRows
			hi := min((h.Hi-column+launch.PanelRows-1)/launch.PanelRows*launch.PanelRows, m.rows)
			b.product(w.qkv.rows(i, lo, hi), b.norms, b.rank.Prompts, b.qkv.Add(4*int64(column+lo)), b.qkvWidth(), offset(m.bias, lo))
		}
		column += m.rows
	}
}

func (b *Backend) projectOut(w *weights) {
	b.roundBefore(b.attended, b.allRows())
	b.columns(w.o, 0, b.attended, b.allRows(), b.y, b.dims.Hidden, b.rank.Slice.Out.Lo, b.rank.Slice.Out.Lo)
}

func (b *Backend) projectOwnOut(w *weights) {
	b.roundBefore(b.attended, b.rank.Owned[:]...)
	for _, r := range b.rank.Owned {
		b.columns(w.o, 0, b.attended, r, b.y, b.dims.Hidden, 0, 0)
	}
}

// gateShare computes this rank's columns of the gate. With mapping Reduce, the down projection reads
// them only, so they lie together.
func (b *Backend) gateShare(w *weights) {
	at, n, t := b.rank.Slice.FFN.Lo, b.rank.Slice.FFN.Len(), b.batch.T
	if n == 0 {
		return
	}
	up := b.gateUp.Add(4 * int64(t) * int64(n))
	b.columns(w.gateUp, 0, b.norms, b.allRows(), b.gateUp, n, 0, 0)
	b.columns(w.gateUp, 1, b.norms, b.allRows(), up, n, 0, 0)
	o := launch.Gate{
		Activation: w.activate, Gate: b.gateUp, Up: up, Ld: n, GateBias: offset(w.gateBias, at),
		UpBias: offset(w.upBias, at), Rows: t, Cols: n,
	}
	if b.batch.Place.Mapping == topology.Reduce {
		if o.Out = b.gated.plain; b.rank.quantized {
			o.Out, o.To = 0, b.gated.rounded
		}
		b.card.Do(o)
		return
	}
	o.Out = b.gateUp
	b.card.Do(o)
	b.card.Do(launch.CopyRows{To: b.gated.plain.Add(4 * int64(at)), LdTo: b.dims.FFN, From: b.gateUp, LdFrom: n, Rows: t, Cols: n})
	b.roundAfter(b.gated, b.allRows())
}

func (b *Backend) projectDown(w *weights) {
	b.roundBefore(b.gated, b.allRows())
	if m := w.down.matrices[0]; m.rows > 0 { // addFFN adds the bias
		b.product(w.down.rows(0, 0, m.rows), b.gated, b.allRows(), b.y.Add(4*int64(b.rank.Slice.Down.Lo)), b.dims.Hidden, 0)
	}
}

// projectUnits computes the tree nodes of this rank's units, and downloads them.
func (b *Backend) projectUnits(w *weights) {
	n, t, h := len(b.rank.Nodes), b.batch.T, b.dims.Hidden
	each := 4 * t * h
	b.rank.parts = b.rank.parts.grow(b, n*each)
	b.rank.views = b.rank.views[:0]
	for i := range n {
		b.rank.views = append(b.rank.views, cuda.Floats(b.rank.parts.bytes()[i*each:][:each]))
	}
	if n == 0 {
		return
	}
	to := b.rank.nodes.grow(b, int64(n*each))
	in := b.gated
	in.cols = b.rank.Slice.FFN.Len()
	b.product(w.down.parts[0].Weight, in, b.allRows(), to, h, 0)
	b.card.Must(b.card.Stream.Download(b.rank.parts.bytes()[:n*each], to))
}

// addFFN adds the output of the FFN to rows of the residual stream. With mapping Reduce, it is the sum
// that the exchange has written to host memory.
func (b *Backend) addFFN(w *weights, rows ...topology.Range) {
	h := b.dims.Hidden
	for _, r := range rows {
		if r.Len() == 0 {
			continue
		}
		if b.batch.Place.Mapping == topology.Reduce && w.experts == nil {
			b.card.Must(b.card.Stream.Upload(b.rowsOf(b.y, r.Lo), b.rank.total.bytes()[4*r.Lo*h:4*r.Hi*h]))
		}
		if w.downBias != 0 {
			b.card.Do(launch.AddBias{X: b.rowsOf(b.y, r.Lo), Bias: w.downBias, Rows: r.Len(), Cols: h})
		}
	}
	b.addRows(w.postFFNorm, w.ffnFactor, rows...)
}

// attendShare computes the attention of this rank: of its decode rows with all heads, and of prompts with
// its heads.
func (b *Backend) attendShare(w *weights) {
	d, r := &b.dims, &b.rank
	if n := r.Decode; n.Len() > 0 {
		b.attend(attention{w, n, b.qkv.Add(4 * int64(n.Lo*b.qkvWidth())), b.qkvWidth(), topology.Range{Lo: 0, Hi: d.KVHeads}})
		b.roundAfter(b.attended, n)
	}
	heads := r.Slice.KVHeads
	if r.Prompts.Len() == 0 || heads.Len() == 0 {
		return
	}
	from, ld := b.qkv.Add(4*int64(r.Prompts.Lo*b.qkvWidth())), b.qkvWidth()
	if heads.Len() < d.KVHeads { // copy the columns of these heads next to each other
		ld = (d.Heads/d.KVHeads + 2) * heads.Len() * d.HeadDim
		to := r.heads.grow(b, 4*int64(r.Prompts.Len())*int64(ld))
		at := 0
		for _, c := range r.Heads {
			b.card.Do(launch.CopyRows{
				To: to.Add(4 * int64(at)), LdTo: ld, From: from.Add(4 * int64(c.Lo)), LdFrom: b.qkvWidth(),
				Rows: r.Prompts.Len(), Cols: c.Len(),
			})
			at += c.Len()
		}
		from = to
	}
	b.attend(attention{w, r.Prompts, from, ld, heads})
	b.roundAfter(b.attended, r.Prompts)
}

// Nodes implements layer.Backend.
func (b *Backend) Nodes() [][]float32 {
	b.wait()
	return b.rank.views
}

// Total implements layer.Backend.
func (b *Backend) Total() []float32 {
	n := 4 * b.batch.T * b.dims.Hidden
	b.rank.total = b.rank.total.grow(b, n)
	return cuda.Floats(b.rank.total.bytes()[:n])
}

// rounding returns the number that package tensor adds to a quantized weight when it stores it.
func rounding(t tensor.DType) int {
	if t == tensor.Q4_0 {
		return 8
	}
	return 128
}
