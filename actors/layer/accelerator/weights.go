package accelerator

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/internal/engine/cuda"
	"github.com/shoal-llm/shoal/internal/engine/cuda/card"
	"github.com/shoal-llm/shoal/internal/engine/cuda/launch"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
)

// memory is allocations on a card that are freed together.
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

// weights is a layer on the card.
type weights struct {
	allocations
	kind     layer.Kind
	index    int // of the cache
	window   int
	rope     int
	activate tensor.Activation

	qkv, gateUp, o, down                        joined
	attnNorm, ffnNorm, postAttnNorm, postFFNorm cuda.Pointer // or 0
	qNorm, kNorm                                cuda.Pointer // or 0
	gateBias, upBias                            cuda.Pointer // or 0
	mixFactor, ffnFactor                        float32      // 0 counts as 1
}

// Kind implements layer.Layer.
func (w *weights) Kind() layer.Kind { return w.kind }

// joined is matrices that one product multiplies, or several, if they do not fit together. Output r
// of part i goes to column at[i]+r.
type joined struct{ parts []part }

type part struct {
	launch.Weight
	bias cuda.Pointer // or 0
	at   int          // first output column
}

// rounded and plain report whether some part takes rounded inputs, or plain ones.
func (j joined) rounded() bool {
	return slices.ContainsFunc(j.parts, func(p part) bool { return kernel.Quantised(p.Type) })
}

func (j joined) plain() bool {
	return slices.ContainsFunc(j.parts, func(p part) bool { return !kernel.Quantised(p.Type) })
}

// matrix uploads a matrix.
func (d *Device) matrix(m *allocations, w *tensor.Weight) launch.Weight {
	j := d.join(m, []*tensor.Weight{w}, [][]float32{nil})
	if len(j.parts) == 0 {
		return launch.Weight{}
	}
	return j.parts[0].Weight
}

// join uploads matrices of the same columns, and joins neighbours of the same type: their rows lie in
// panels, so panels of several matrices are those of one.
func (d *Device) join(m *allocations, all []*tensor.Weight, biases [][]float32) (j joined) {
	at := 0
	for i := 0; i < len(all) && m.err == nil; {
		n := i + 1
		for n < len(all) && all[n].Type == all[i].Type && (biases[n] == nil) == (biases[i] == nil) && all[n-1].Rows%launch.PanelRows == 0 {
			n++
		}
		p := part{Weight: d.pack(m, all[i:n]), at: at}
		p.bias = m.vector(slices.Concat(biases[i:n]...))
		j.parts = append(j.parts, p)
		at += p.Rows
		i = n
	}
	return j
}

// pack uploads matrices as one.
func (d *Device) pack(m *allocations, all []*tensor.Weight) launch.Weight {
	d.mu.Lock()
	defer d.mu.Unlock()
	w := launch.Weight{Type: all[0].Type, Cols: all[0].Cols}
	var data, scales int64
	for _, x := range all {
		n, s := launch.PackedBytes(x.Type, x.Rows, x.Cols)
		w.Rows, data, scales = w.Rows+x.Rows, data+n, scales+s
	}
	d.packed, d.scales = grown(d.packed, data), grown(d.scales, scales)
	to, toScales := d.packed, d.scales
	for _, x := range all {
		n, s := launch.PackedBytes(x.Type, x.Rows, x.Cols)
		if err := launch.Pack(to[:n], toScales[:s], x); err != nil {
			m.err = errors.Join(m.err, err)
			return w
		}
		to, toScales = to[n:], toScales[s:]
	}
	w.Data, w.Scales = m.upload(d.packed), m.upload(d.scales)
	return w
}

func grown(b []byte, n int64) []byte {
	if int64(cap(b)) < n {
		return make([]byte, n)
	}
	b = b[:n]
	clear(b)
	return b
}

// upload copies a layer to the card. The result holds what was copied before an error.
func (d *Device) upload(w *layer.Weights) (*weights, error) {
	l := &weights{allocations: allocations{card: d.card}, kind: w.Kind(), index: w.Index, window: w.Window, rope: w.Rope, activate: w.Activation,
		mixFactor: w.MixFactor, ffnFactor: w.FFNFactor}
	if why := unsupported(w); why != "" {
		return l, fmt.Errorf("%s: not computed on a card", why)
	}
	l.qkv = d.join(&l.allocations, []*tensor.Weight{w.Q, w.K, w.V}, [][]float32{w.QBias, w.KBias, w.VBias})
	l.o = d.join(&l.allocations, []*tensor.Weight{w.O}, [][]float32{w.OBias})
	l.gateUp = d.join(&l.allocations, []*tensor.Weight{w.Gate, w.Up}, [][]float32{nil, nil})
	l.down = d.join(&l.allocations, []*tensor.Weight{w.Down}, [][]float32{w.DownBias})
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
	case w.Experts != nil:
		return "experts"
	case w.Latent != nil:
		return "latent attention"
	case w.Delta != nil:
		return "a recurrent state"
	case w.SwiftKV != nil || w.KVComputed:
		return "SwiftKV"
	case w.Borrows || w.Lends || w.SharesCache || w.VFromK || w.VNorm != nil:
		return "keys and values of another layer"
	case w.PerLayer != nil || w.Scalar != 0 || w.QGate != nil || w.Grows || w.GateFactor != 0 || w.SameNorm || w.Bare || w.EndsPrompts:
		return "inputs or gates of a layer"
	case w.Q == nil || w.K == nil || w.V == nil || w.O == nil || w.Gate == nil || w.Up == nil || w.Down == nil:
		return "a layer without some of q, k, v, o, gate, up and down"
	}
	return ""
}
