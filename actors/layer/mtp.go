package layer

import (
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// MTP is what stands ahead of the layer of multi-token prediction (DeepSeek-V3, arXiv
// 2412.19437, equation 21): it reads the embedding of a token beside the state of the one
// before it.
type MTP struct {
	Embed, Hidden []float32      // norms of the two
	Project       *tensor.Weight // (Hidden, 2*Hidden)
}

// Bytes is the memory of the weights, Close frees it.
func (m *MTP) Bytes() int64 {
	if m.Project == nil {
		return 0
	}
	return m.Project.Bytes()
}

func (m *MTP) Close() {
	if m.Project != nil {
		m.Project.Close()
	}
}

func (b *Processor) States(ends Held, rows topology.Range) []float32 {
	e, h := ends.(*Ends), b.Dims.Hidden
	out := make([]float32, rows.Len()*h)
	for i := range rows.Len() {
		tensor.RMSNorm(out[i*h:(i+1)*h], b.X[(rows.Lo+i)*h:][:h], e.FinalNorm, b.Dims.NormEps)
	}
	return out
}

func (b *Processor) Join(weights Held, states []float32) {
	m, h := weights.(*MTP), b.Dims.Hidden
	b.pairs = growF(b.pairs, 2*b.batch.T*h)
	for t := range b.batch.T {
		pair := b.pairs[2*t*h:][:2*h]
		tensor.RMSNorm(pair[:h], b.X[t*h:(t+1)*h], m.Embed, b.Dims.NormEps)
		tensor.RMSNorm(pair[h:], states[t*h:(t+1)*h], m.Hidden, b.Dims.NormEps)
	}
	b.Pool.MatMul(b.X, h, m.Project, b.pairs, 2*h, b.batch.T)
}
