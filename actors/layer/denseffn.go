package layer

import (
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// A dense FFN in a layer with experts (Gemma 4). It is cut as shared experts are, but has norms of its
// own, and so have the experts and the router. Its output crosses the wire with theirs.

func (m *mixture) initBeside(b *Processor, maxRows int) {
	h, eps := b.Dims.Hidden, b.Dims.NormEps
	m.sharedSum, m.router, m.besideInput = make([]float32, maxRows*h), make([]float32, maxRows*h), make([]float32, maxRows*h)
	m.normBeside = func(t int) {
		x, beside := b.X[t*h:(t+1)*h], m.experts.Beside
		tensor.RMSNorm(m.router[t*h:(t+1)*h], x, beside.RouterScale, eps)
		tensor.RMSNorm(m.besideInput[t*h:(t+1)*h], x, beside.Norm, eps)
	}
	m.joinBeside = func(t int) {
		t += m.firstRow
		y, dense := b.Y[t*h:(t+1)*h], m.sharedSum[t*h:(t+1)*h]
		tensor.RMSNorm(dense, dense, m.beside.SharedNorm, eps)
		tensor.RMSNorm(y, y, m.beside.PostNorm, eps)
		tensor.Add(y, dense)
	}
}

// input is the input of the experts.
func (m *mixture) input(b *Processor) []float32 {
	if m.experts.Beside != nil {
		return m.besideInput
	}
	return b.Norm
}

// joinBeside adds both outputs, after their norms, into Y.
func (b *Processor) joinBeside(beside *DenseFFN, rows topology.Range) {
	b.mix.beside, b.mix.firstRow = beside, rows.Lo
	b.each(rows.Len(), b.mix.joinBeside)
}
