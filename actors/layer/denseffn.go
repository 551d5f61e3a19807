package layer

import (
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// A dense FFN in a layer with experts (Gemma 4). It is cut as shared experts are, but has norms of its
// own, and so have the experts and the router. Its output crosses the wire with theirs.

func (m *mixture) initDenseFFN(b *Processor, maxRows int) {
	h, eps := b.Dims.Hidden, b.Dims.NormEps
	m.sharedSum, m.router, m.expertInput = make([]float32, maxRows*h), make([]float32, maxRows*h), make([]float32, maxRows*h)
	m.normInputs = func(t int) {
		x, dense := b.X[t*h:(t+1)*h], m.experts.DenseFFN
		tensor.RMSNorm(m.router[t*h:(t+1)*h], x, dense.RouterScale, eps)
		tensor.RMSNorm(m.expertInput[t*h:(t+1)*h], x, dense.Norm, eps)
	}
	m.joinOutputs = func(t int) {
		t += m.firstRow
		y, dense := b.Y[t*h:(t+1)*h], m.sharedSum[t*h:(t+1)*h]
		tensor.RMSNorm(dense, dense, m.dense.SharedNorm, eps)
		tensor.RMSNorm(y, y, m.dense.PostNorm, eps)
		tensor.Add(y, dense)
	}
}

// input is the input of the experts.
func (m *mixture) input(b *Processor) []float32 {
	if m.experts.DenseFFN != nil {
		return m.expertInput
	}
	return b.Norm
}

// joinOutputs adds both outputs, after their norms, into Y.
func (b *Processor) joinOutputs(dense *DenseFFN, rows topology.Range) {
	b.mix.dense, b.mix.firstRow = dense, rows.Lo
	b.each(rows.Len(), b.mix.joinOutputs)
}
