package experts

import (
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// A dense FFN in a layer with experts (Gemma 4). It is cut as shared experts are, but has norms of its
// own, and so have the experts and the router. Its output crosses the wire with theirs.

func (m *Rows) initDenseFFN(maxRows int) {
	h, eps := m.Hidden, m.NormEps
	m.SharedSum, m.router, m.expertInput = make([]float32, maxRows*h), make([]float32, maxRows*h), make([]float32, maxRows*h)
	m.normInputs = func(t int) {
		x, dense := m.residual[t*h:(t+1)*h], m.w.DenseFFN
		tensor.RMSNorm(m.router[t*h:(t+1)*h], x, dense.RouterScale, eps)
		tensor.RMSNorm(m.expertInput[t*h:(t+1)*h], x, dense.Norm, eps)
	}
	m.joinOutputs = func(t int) {
		t += m.firstRow
		y, dense := m.output[t*h:(t+1)*h], m.SharedSum[t*h:(t+1)*h]
		tensor.RMSNorm(dense, dense, m.dense.SharedNorm, eps)
		tensor.RMSNorm(y, y, m.dense.PostNorm, eps)
		tensor.Add(y, dense)
	}
}

// input returns the input of the experts.
func (m *Rows) input() []float32 {
	if m.w.DenseFFN != nil {
		return m.expertInput
	}
	return m.normed
}

// Join adds both outputs of rows, after their norms, into the output.
func (m *Rows) Join(dense *DenseFFN, rows topology.Range) {
	m.dense, m.firstRow = dense, rows.Lo
	m.each(rows.Len(), m.joinOutputs)
}
