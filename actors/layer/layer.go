// Package layer is one transformer layer on one socket: an actor that carries a
// batch through the stages of schedule.go. Compute runs on the socket's
// executor, exchanges on the collective group; the actor only decides what is
// next.
package layer

import (
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// Weights are the slices of one layer's matrices that a socket holds. A nil
// matrix is an empty slice. Gather: rows by topology.Slice. Reduce: Q, K, V, O
// whole, Gate and Up by rows of the FFN slice, Down all rows by FFN units. A layer
// with Experts has no Gate, Up and Down.
type Weights struct {
	Index int // of the cache that the layer's attention reads

	Q, K, V, O, Gate, Up, Down                             *tensor.Weight
	AttnNorm, FFNNorm                                      []float32 // (Hidden)
	PostAttnNorm, PostFFNNorm                              []float32 // (Hidden), of what attention and FFN add; or nil
	QNorm, KNorm                                           []float32 // (HeadDim), of each head before its rotation; or nil
	QBias, KBias, VBias, OBias, GateBias, UpBias, DownBias []float32 // whole rows, or nil
	Experts                                                *Experts  // on every socket, or nil on all
	Latent                                                 *Latent   // in place of Q, K and V; or nil

	// SwiftKV, unless nil, is all there is: these are no layer, but the pass ahead of those
	// whose keys and values it computes. Of them Later is true of all, and Follows of those
	// whose cache is an earlier one's.
	SwiftKV        *SwiftKV
	Later, Follows bool

	Window int // sliding window in tokens, the newest included; 0: none
	Rope   int // which of the batch's rotations: 0, or 1 where layers with a window have their own

	Activation tensor.Activation // of the FFN's gate
}

func (w *Weights) Kind() Kind {
	k := Kind{Sparse: w.Experts != nil, Later: w.Later, Input: w.SwiftKV != nil}
	if k.Input {
		k.Caches = len(w.SwiftKV.Caches)
	}
	return k
}

type closer interface {
	Close() error
	Bytes() int64
}

func (w *Weights) all() []closer {
	var all []closer
	for _, m := range append([]*tensor.Weight{w.Q, w.K, w.V, w.O, w.Gate, w.Up, w.Down}, w.Latent.matrices()...) {
		if m != nil {
			all = append(all, m)
		}
	}
	if w.Experts != nil {
		all = append(all, w.Experts.weights()...)
	}
	if w.SwiftKV != nil {
		for _, c := range w.SwiftKV.Caches {
			for _, m := range [...]*tensor.Weight{c.K, c.V} {
				if m != nil {
					all = append(all, m)
				}
			}
		}
	}
	return all
}

func (w *Weights) Close() {
	for _, m := range w.all() {
		m.Close()
	}
}

func (w *Weights) Bytes() int64 {
	var n int64
	for _, m := range w.all() {
		n += m.Bytes()
	}
	return n
}

// norm: Norm = RMSNorm(X).
func (b *Processor) norm(weight []float32) {
	b.normWeight = weight
	b.each(b.batch.T, b.normRow)
}

// addResidual is X += Y, or X += RMSNorm(Y, norm), for some rows.
func (b *Processor) addResidual(norm []float32, rows topology.Range) {
	b.postNorm, b.firstRow = norm, rows.Lo
	b.each(rows.Len(), b.residualRow)
}

// addNorm is addResidual behind attention, then the norm ahead of the FFN, by row.
func (b *Processor) addNorm(w *Weights, rows topology.Range, row func(t int)) {
	b.postNorm, b.normWeight, b.firstRow = w.PostAttnNorm, w.FFNNorm, rows.Lo
	b.each(rows.Len(), row)
}

// each runs a small task for every row: alone where waking the others costs more.
func (b *Processor) each(rows int, f func(int)) {
	if rows < aloneRows {
		for i := range rows {
			f(i)
		}
		return
	}
	b.Pool.Run(rows, f)
}

// aloneRows are the rows from which element-wise work is shared: a row takes about
// a microsecond, and so does waking the other threads.
const aloneRows = 4

func addBias(y []float32, ld, n int, bias []float32, r topology.Range) {
	if bias == nil {
		return
	}
	for t := range n {
		tensor.Add(y[t*ld+r.Lo:t*ld+r.Hi], bias[r.Lo:r.Hi])
	}
}
