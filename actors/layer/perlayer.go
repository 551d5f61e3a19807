package layer

import (
	"math"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// Per-layer inputs (model.PerLayer). Their matrices are a few hundredths of a layer, and the table
// is read by row from its file. So every rank has them whole and computes the rows that it needs:
// cutting them would cost two more synchronizations a layer.

// PerLayerInputs are the weights that compute the inputs of all layers from a token.
type PerLayerInputs struct {
	Table   checkpoint.Tensor // (vocabulary, layers*width), read from its file, one row per token
	Scale   float32           // factor of its rows
	Project *tensor.Weight    // (layers*width, Hidden)
	Norm    []float32         // (width)
}

// PerLayer is the weights with which one layer uses its input.
type PerLayer struct {
	Gate    *tensor.Weight // (width, Hidden)
	Project *tensor.Weight // (Hidden, width)
	Norm    []float32      // (Hidden)
	Layer   int            // number of the layer
}

// perLayer is the state of a batch.
type perLayer struct {
	inputs []float32 // (T, layers*width)
	gate   []float32 // (T, width)
	w      *Weights
	first  int // first row of apply

	activate, add func(t int)
}

func (b *Processor) initPerLayer(maxRows int) {
	p, d := &b.perLayer, b.Dims
	w, h := d.PerLayer, d.Hidden
	if w == 0 {
		return
	}
	p.inputs, p.gate = make([]float32, maxRows*w*d.Layers), make([]float32, maxRows*w)
	p.activate = func(t int) {
		row := p.first + t
		gate := p.gate[row*w : (row+1)*w]
		d.Activation.Mul(gate, gate, p.inputs[(row*d.Layers+p.w.PerLayer.Layer)*w:][:w])
	}
	p.add = func(t int) {
		row := p.first + t
		y, x := b.Y[row*h:(row+1)*h], b.X[row*h:(row+1)*h]
		tensor.RMSNorm(y, y, p.w.PerLayer.Norm, d.NormEps)
		tensor.Add(x, y)
	}
}

// embedPerLayer computes the inputs of rows from their embeddings and tokens.
func (b *Processor) embedPerLayer(e *PerLayerInputs, first int, tokens []uint32, checked bool) error {
	p, d := &b.perLayer, b.Dims
	w := d.PerLayer
	n := w * d.Layers
	y := p.inputs[first*n:]
	b.Pool.MatMul(y, n, e.Project, b.X[first*d.Hidden:], d.Hidden, len(tokens))
	root, half := float32(1/math.Sqrt(float64(d.Hidden))), float32(math.Sqrt(0.5))
	b.pairs = growF(b.pairs, n)
	for t, token := range tokens {
		row, table := y[t*n:(t+1)*n], b.pairs[:n]
		if !checked {
			e.Table.Row(table, int(token), 0, n)
		} else if err := e.Table.CheckedRow(table, int(token), 0, n); err != nil {
			return err
		}
		tensor.Scale(table, e.Scale)
		tensor.Scale(row, root)
		for l := range d.Layers {
			one := row[l*w : (l+1)*w]
			tensor.RMSNorm(one, one, e.Norm, d.NormEps)
		}
		tensor.Add(row, table)
		tensor.Scale(row, half)
	}
	return nil
}

// endLayer computes the part of a layer after the FFN, for rows of X.
func (w *Weights) endLayer(b *Processor, rows topology.Range) {
	h := b.Dims.Hidden
	if l := w.PerLayer; l != nil && rows.Len() > 0 {
		p, n := &b.perLayer, b.Dims.PerLayer
		p.w, p.first = w, rows.Lo
		b.Pool.MatMul(p.gate[rows.Lo*n:], n, l.Gate, b.X[rows.Lo*h:], h, rows.Len())
		b.each(rows.Len(), p.activate)
		b.Pool.MatMul(b.Y[rows.Lo*h:], h, l.Project, p.gate[rows.Lo*n:], n, rows.Len())
		b.each(rows.Len(), p.add)
	}
	if w.Scalar != 0 && w.Scalar != 1 {
		tensor.Scale(b.X[rows.Lo*h:rows.Hi*h], w.Scalar)
	}
}
