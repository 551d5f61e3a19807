// Package layer is one transformer layer on one socket: an actor that takes a batch through the
// stages of schedule.go. Stages run on the socket's executor, exchanges in the collective group.
// The actor only decides which comes next.
package layer

import (
	"slices"

	"github.com/shoal-llm/shoal/actors/layer/experts"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// Weights are the slices of one layer's matrices that a socket holds. A nil matrix is an empty
// slice. With mapping Gather, matrices have the rows of topology.Slice. With Reduce, Q, K, V and O
// are whole, Gate and Up have the rows of the FFN slice, and Down has all rows and the columns of
// the FFN units. A layer with Experts has no Gate, Up and Down; an FFN without a gate has no Up.
type Weights struct {
	Number int // of the layer in the model
	Index  int // number of the cache that the layer's attention reads, or of its recurrent state

	Q, K, V, O, Gate, Up, Down *tensor.Weight

	QGate   *tensor.Weight   // rows of Q; the output of attention is multiplied by its sigmoid; or nil
	Latent  *Latent          // replaces Q, K and V; or nil
	Delta   *Delta           // replaces attention, except O; or nil
	Experts *experts.Weights // on every socket, or on none

	// The norms before attention and FFN, (Hidden), or (2*Hidden) weights and biases; nil: attention or
	// FFN reads X itself.
	AttnNorm, FFNNorm         []float32
	PostAttnNorm, PostFFNNorm []float32 // (Hidden), norms of the outputs of attention and FFN; or nil
	QNorm, KNorm              []float32 // (HeadDim), or the width that Dims.QKNormOf gives; or nil

	// Biases are for whole rows, or nil.
	QBias, KBias, VBias, OBias, GateBias, UpBias, DownBias []float32

	// SwiftKV, if not nil, is the only field in use: it has the weights of SwiftKV's pass, not
	// of a layer. Later is set for the layers whose keys and values that pass computes. Follows is
	// set for the ones among them that share the cache of an earlier layer.
	SwiftKV                 *SwiftKV
	KVComputed, SharesCache bool

	// Borrows is set for layers that read the keys and values of an earlier layer, which has Lends
	// set. Lent is the number of the lending layer among those of the model.
	Borrows, Lends bool
	Lent           int

	EndsPrompts bool // all layers after this one borrow keys and values

	VNorm  []float32 // (HeadDim) ones: the norm of each value head; or nil
	VFromK bool      // values are the keys before their norm and rotation

	PerLayer *PerLayer // the per-layer input after the FFN; or nil
	Scalar   float32   // factor of X at the end of the layer; 0 counts as 1

	Widths int  // index in Dims.Widths
	Window int  // sliding window in tokens, including the newest; 0: none; negative: the size of chunks of the text
	Grows  bool // queries grow with their position by Dims.Growth
	Rope   int  // index of the rotation: 0, or 1 where layers with a window have their own

	Activation tensor.Activation // applied to the FFN's gate

	// Factors of the outputs of attention and of the FFN, and of the gate before its activation; 0 counts
	// as 1.
	MixFactor, FFNFactor, GateFactor float32

	Bare     bool // no FFN
	SameNorm bool // attention reads Norm as the layer before left it
}

func (w *Weights) Kind() Kind {
	k := Kind{
		Sparse: w.Experts != nil, KVComputed: w.KVComputed || w.Borrows, SwiftKVPass: w.SwiftKV != nil, Widths: w.Widths,
		VFromK: w.VFromK, Recurrent: w.Delta != nil, EndsPrompts: w.EndsPrompts, Bare: w.Bare, SameNorm: w.SameNorm,
	}
	if k.SwiftKVPass {
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
	own := []*tensor.Weight{w.Q, w.K, w.V, w.QGate, w.O, w.Gate, w.Up, w.Down}
	for _, m := range slices.Concat(own, w.Latent.matrices(), w.Delta.matrices()) {
		if m != nil {
			all = append(all, m)
		}
	}
	if w.Experts != nil {
		for _, m := range w.Experts.Matrices() {
			all = append(all, m)
		}
		for _, m := range w.Experts.Banks() {
			all = append(all, m)
		}
	}
	if p := w.PerLayer; p != nil && p.Gate != nil {
		all = append(all, p.Gate, p.Project)
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
	if w.Experts != nil {
		n += w.Experts.Biases.Bytes()
	}
	return n
}

// norm computes the norm of a row of the residual stream.
func (d *Dims) norm(dst, x, w []float32) {
	switch {
	case len(w) > len(x): // weights, then biases
		tensor.LayerNormBias(dst, x, w[:len(x)], w[len(x):], d.NormEps)
		return
	case d.MeanNorm:
		tensor.LayerNorm(dst, x, w, d.NormEps)
		return
	}
	tensor.RMSNorm(dst, x, w, d.NormEps)
}

// norm computes Norm = RMSNorm(X), or X without a weight.
func (b *Processor) norm(weight []float32) {
	b.normWeight = weight
	b.each(b.batch.T, b.normRow)
}

// addResidual computes X += factor * Y, or X += factor * RMSNorm(Y, norm), for rows.
func (b *Processor) addResidual(norm []float32, factor float32, rows topology.Range) {
	b.postNorm, b.factor, b.firstRow = norm, factor, rows.Lo
	b.each(rows.Len(), b.residualRow)
}

// addNorm does addResidual after attention and the norm before the FFN, row by row.
func (b *Processor) addNorm(w *Weights, rows topology.Range, row func(t int)) {
	b.postNorm, b.factor, b.normWeight, b.firstRow = w.PostAttnNorm, w.MixFactor, w.FFNNorm, rows.Lo
	b.each(rows.Len(), row)
}

// each runs a small task per row. With few rows it uses one thread, because waking others costs more.
func (b *Processor) each(rows int, f func(int)) {
	if rows < minParallelRows {
		for i := range rows {
			f(i)
		}
		return
	}
	b.Pool.Run(rows, f)
}

// minParallelRows is the number of rows from which element-wise work is divided among threads. A
// row takes about a microsecond, and so does waking the other threads.
const minParallelRows = 4

func addBias(y []float32, ld, n int, bias []float32, r topology.Range) {
	if bias == nil {
		return
	}
	for t := range n {
		tensor.Add(y[t*ld+r.Lo:t*ld+r.Hi], bias[r.Lo:r.Hi])
	}
}
