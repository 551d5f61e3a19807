package accelerator

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/internal/engine/cuda"
	"github.com/shoal-llm/shoal/internal/engine/cuda/card"
	"github.com/shoal-llm/shoal/internal/engine/cuda/launch"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
)

// allocations are pieces of a card's memory that are freed together.
type allocations struct {
	card  *card.Card
	held  []allocation
	bytes int64
	err   error // the first failure; later allocations are skipped
}

type allocation struct {
	at    cuda.Pointer
	bytes int64
}

func (m *allocations) alloc(n int64) cuda.Pointer {
	if m.err != nil || n == 0 {
		return 0
	}
	var p cuda.Pointer
	if p, m.err = m.card.Alloc(n); m.err == nil {
		m.held, m.bytes = append(m.held, allocation{p, n}), m.bytes+n
	}
	return p
}

// activation allocates the memory of an activation.
func (m *allocations) activation(rows, cols int) activation {
	n, s := launch.RoundedBytes(rows, cols)
	return activation{m.alloc(4 * int64(rows) * int64(cols)), launch.Rounded{Bytes: m.alloc(n), Scales: m.alloc(s)}, cols}
}

func (m *allocations) upload(b []byte) cuda.Pointer {
	p := m.alloc(int64(len(b)))
	if p != 0 {
		m.card.Upload(p, b)
	}
	return p
}

// vector uploads numbers; nil gives the address 0.
func (m *allocations) vector(x []float32) cuda.Pointer { return m.upload(bytesOf(x)) }

// Bytes and Close implement layer.Held.
func (m *allocations) Bytes() int64 { return m.bytes }

func (m *allocations) Close() {
	for _, a := range m.held {
		m.card.Free(a.at, a.bytes)
	}
	m.held, m.bytes = nil, 0
}

func bytesOf(x []float32) []byte {
	b := make([]byte, 0, 4*len(x))
	for _, v := range x {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}

// weights holds a layer on the card.
type weights struct {
	allocations
	kind     layer.Kind
	index    int // of the cache
	window   int
	rope     int
	activate tensor.Activation
	// Factors of the outputs of attention and FFN, before they are added to the residual stream; 0:
	// none.
	mixFactor, ffnFactor float32

	qkv, gateUp, o, down                        joined
	attnNorm, ffnNorm, postAttnNorm, postFFNorm cuda.Pointer   // or 0
	qNorm, kNorm                                cuda.Pointer   // or 0
	gateBias, upBias, downBias                  cuda.Pointer   // or 0
	experts                                     *expertWeights // replaces gateUp and down; or nil
}

// Kind implements layer.Layer.
func (w *weights) Kind() layer.Kind { return w.kind }

// joined holds matrices with the same input. One product multiplies those of the same type; each part
// has a product. Output r of part i goes to column at[i]+r.
type joined struct {
	parts    []part
	matrices []matrixIn // without rows if this rank has none
}

type part struct {
	launch.Weight
	bias cuda.Pointer // of its first row, or 0
	at   int          // first output column
}

// matrixIn is the place of a matrix in a joined. Its first row is the first of a panel.
type matrixIn struct {
	part, first, rows int
	bias              cuda.Pointer // of all rows of the model's matrix, or 0
}

// rounded and plain report whether some part takes rounded inputs, or plain ones.
func (j joined) rounded() bool {
	return slices.ContainsFunc(j.parts, func(p part) bool { return kernel.Quantized(p.Type) })
}

func (j joined) plain() bool {
	return slices.ContainsFunc(j.parts, func(p part) bool { return !kernel.Quantized(p.Type) })
}

// rows returns rows of matrix i, from a multiple of 16 on.
func (j joined) rows(i, lo, hi int) launch.Weight {
	m := j.matrices[i]
	w := j.parts[m.part].Weight
	held := w.HeldCols()
	data, scales := launch.PackedBytes(w.Type, m.first+lo, held)
	w.Data, w.Rows = w.Data.Add(data), hi-lo
	if w.Scales != 0 {
		w.Scales = w.Scales.Add(scales)
	}
	return w
}

// whole returns matrix i.
func (j joined) whole(i int) launch.Weight {
	if j.matrices[i].rows == 0 {
		return launch.Weight{}
	}
	return j.rows(i, 0, j.matrices[i].rows)
}

// matrix uploads a matrix.
func matrix(m *allocations, w *tensor.Weight) launch.Weight {
	if w == nil {
		return launch.Weight{}
	}
	return upload(m, pack([]*tensor.Weight{w}, [][]float32{nil}))[0].parts[0].Weight
}

// packed holds the matrices of one joined, in the layout of the card.
type packed struct {
	parts    []packedPart
	matrices []matrixIn
	biases   [][]float32
}

type packedPart struct {
	launch.Weight
	data, scales []byte
	biased       bool
	pieces       []*tensor.Weight
}

// pack groups matrices with the same columns: neighbours of the same type become one part. Rows are in
// panels, so the panels of several matrices together form one matrix. upload converts and copies them.
// A nil matrix has no rows.
func pack(all []*tensor.Weight, biases [][]float32) (out packed) {
	out.biases = biases
	whole := true // the last matrix ends with a whole panel
	for i, w := range all {
		if w == nil {
			out.matrices = append(out.matrices, matrixIn{})
			continue
		}
		n := len(out.parts)
		if n == 0 || out.parts[n-1].Type != w.Type || out.parts[n-1].biased != (biases[i] != nil) || !whole {
			out.parts = append(out.parts,
				packedPart{Weight: launch.Weight{Type: w.Type, Cols: w.Cols, UnitLo: w.UnitLo, UnitHi: w.UnitHi}, biased: biases[i] != nil})
			n++
		}
		p := &out.parts[n-1]
		out.matrices = append(out.matrices, matrixIn{part: n - 1, first: p.Rows, rows: w.Rows})
		p.Rows, p.pieces, whole = p.Rows+w.Rows, append(p.pieces, w), w.Rows%launch.PanelRows == 0
	}
	for i := range out.parts {
		p := &out.parts[i]
		var data, scales int64
		for _, w := range p.pieces {
			d, s := launch.PackedBytes(w.Type, w.Rows, w.Span().Len())
			data, scales = data+d, scales+s
		}
		p.data, p.scales = make([]byte, data), make([]byte, scales)
	}
	return out
}

// upload packs matrices in parallel, and copies them to the card.
func upload(m *allocations, all ...packed) (out []joined) {
	var work sync.WaitGroup
	errs := make(chan error, 1)
	for _, j := range all {
		for _, p := range j.parts {
			data, scales := p.data, p.scales
			for _, w := range p.pieces {
				d, s := launch.PackedBytes(w.Type, w.Rows, w.Span().Len())
				toData, toScales := data[:d], scales[:s]
				data, scales = data[d:], scales[s:]
				work.Go(func() {
					if err := launch.Pack(toData, toScales, w); err != nil {
						select {
						case errs <- err:
						default:
						}
					}
				})
			}
		}
	}
	work.Wait()
	select {
	case err := <-errs:
		m.err = errors.Join(m.err, err)
	default:
	}
	for _, j := range all {
		to := joined{matrices: j.matrices}
		at := 0
		for _, p := range j.parts {
			p.Data, p.Scales = m.upload(p.data), m.upload(p.scales)
			to.parts = append(to.parts, part{Weight: p.Weight, at: at})
			at += p.Rows
		}
		bias := m.vector(slices.Concat(j.biases...)) // successive ones, as the rows of a part
		for i, b := range j.biases {
			if len(b) == 0 || bias == 0 {
				continue
			}
			x := &to.matrices[i]
			x.bias = bias
			if x.rows > 0 && x.first == 0 {
				to.parts[x.part].bias = bias
			}
			bias = bias.Add(4 * int64(len(b)))
		}
		out = append(out, to)
	}
	return out
}

// layer copies a layer to the card. The result holds the parts copied before an error.
func (d *Device) layer(w *layer.Weights) (*weights, error) {
	l := &weights{allocations: allocations{card: d.card}, kind: w.Kind(), index: w.Index, window: w.Window, rope: w.Rope,
		activate: w.Activation, mixFactor: w.MixFactor, ffnFactor: w.FFNFactor}
	if why := unsupported(w); why != "" {
		return l, fmt.Errorf("%s: not computed on a card", why)
	}
	if w.Experts != nil {
		l.uploadExperts(w.Experts)
	}
	all := upload(&l.allocations,
		pack([]*tensor.Weight{w.Q, w.K, w.V}, [][]float32{w.QBias, w.KBias, w.VBias}),
		pack([]*tensor.Weight{w.O}, [][]float32{w.OBias}),
		pack([]*tensor.Weight{w.Gate, w.Up}, [][]float32{nil, nil}),
		pack([]*tensor.Weight{w.Down}, [][]float32{w.DownBias}))
	l.qkv, l.o, l.gateUp, l.down = all[0], all[1], all[2], all[3]
	l.downBias = l.down.matrices[0].bias
	for _, v := range []struct {
		to   *cuda.Pointer
		from []float32
	}{{&l.attnNorm, w.AttnNorm}, {&l.ffnNorm, w.FFNNorm}, {&l.postAttnNorm, w.PostAttnNorm}, {&l.postFFNorm, w.PostFFNNorm},
		{&l.qNorm, w.QNorm}, {&l.kNorm, w.KNorm}, {&l.gateBias, w.GateBias}, {&l.upBias, w.UpBias}} {
		*v.to = l.vector(v.from)
	}
	return l, l.err
}

// unsupported names the part of a layer that the card does not compute.
func unsupported(w *layer.Weights) string {
	switch {
	case w.Experts != nil && (w.Experts.Biases != nil || w.Experts.DenseFFN != nil || w.Experts.Gate != nil && w.Experts.Up == nil):
		return "experts with biases, with a dense FFN or without a gate"
	case w.Latent != nil:
		return "latent attention"
	case w.Delta != nil:
		return "a recurrent state"
	case w.SwiftKV != nil || w.KVComputed:
		return "SwiftKV"
	case w.Borrows || w.Lends || w.SharesCache || w.VFromK || w.VNorm != nil:
		return "keys and values of another layer"
	case w.Bare || w.SameNorm || w.GateFactor != 0:
		return "a layer without an FFN, or with a factor of its gate"
	case w.PerLayer != nil || w.Scalar != 0 || w.QGate != nil || w.Grows:
		return "inputs or gates of a layer"
	case w.Up == nil && w.Gate != nil:
		return "an FFN without a gate"
	}
	return ""
}
