package layer

import (
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// MTP is the input stage of the multi-token-prediction layer (DeepSeek-V3, arXiv 2412.19437,
// equation 21). It combines the embedding of a token with the hidden state of the preceding token.
type MTP struct {
	Embed, Hidden []float32      // norms of embedding and hidden state
	Project       *tensor.Weight // (Hidden, 2*Hidden)
}

// Bytes returns the memory of the weights, and Close frees it.
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

// HostStates are hidden states in host memory.
type HostStates struct {
	Hidden int
	Rows   []float32
}

func (s *HostStates) Len() int { return len(s.Rows) / s.Hidden }

func (s *HostStates) Drop(n int) { s.Rows = slices.Delete(s.Rows, 0, n*s.Hidden) }

// Keep implements Backend.
func (b *Processor) Keep(to States, ends Held, rows []int) {
	s, h := to.(*HostStates), b.Dims.Hidden
	for _, r := range rows {
		at := len(s.Rows)
		s.Rows = append(s.Rows, b.X[r*h:(r+1)*h]...)
		if ends != nil {
			b.Dims.norm(s.Rows[at:], b.X[r*h:(r+1)*h], ends.(*Ends).FinalNorm)
		}
	}
}

// Join implements Backend.
func (b *Processor) Join(weights Held, states []StateRun) {
	m, h, t := weights.(*MTP), b.Dims.Hidden, 0
	b.pairs = growF(b.pairs, 2*b.batch.T*h)
	for _, run := range states {
		from := run.Of.(*HostStates).Rows[run.First*h:]
		for i := range run.N {
			pair := b.pairs[2*t*h:][:2*h]
			tensor.RMSNorm(pair[:h], b.X[t*h:(t+1)*h], m.Embed, b.Dims.NormEps)
			tensor.RMSNorm(pair[h:], from[i*h:(i+1)*h], m.Hidden, b.Dims.NormEps)
			t++
		}
	}
	b.Pool.MatMul(b.X, h, m.Project, b.pairs, 2*h, b.batch.T)
}
