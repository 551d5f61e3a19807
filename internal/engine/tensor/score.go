package tensor

import "github.com/shoal-llm/shoal/internal/engine/tensor/f32"

// Score specifies the weight of a key in attention: the softmax, over slots, of Scale times the
// product of the key and the query.
type Score struct {
	Scale float32
	// Cap, unless 0, bounds scores: they are Cap*tanh(score/Cap) before the softmax (Gemma 2, arXiv
	// 2408.00118, section 2).
	Cap float32
	// Sinks, unless nil, are [cache layer][query head]: one more score of the softmax, of no slot
	// (gpt-oss, arXiv 2508.10925, section 2). A layer without sinks has nil. Kernels take a score of
	// some heads, see Heads.
	Sinks [][]float32

	sinks []float32 // of the heads of a call
}

// Heads returns the score of n query heads of a layer, from first on.
func (s Score) Heads(layer, first, n int) Score {
	if s.Sinks != nil {
		if all := s.Sinks[layer]; all != nil {
			s.sinks = all[first : first+n]
		}
		s.Sinks = nil
	}
	return s
}

// Of turns products of keys and a query into scores.
func (s Score) Of(products []float32) {
	Scale(products, s.Scale)
	if s.Cap != 0 {
		SoftCap(products, s.Cap)
	}
}

// LogSum returns the logarithm of the denominator of a softmax over the given scores of a head, counted
// from the first of Heads: LogSumExp of them, and of that with the sink.
func (s Score) LogSum(scores []float32, head int) float32 {
	sum := LogSumExp(scores)
	if s.sinks == nil {
		return sum
	}
	return LogSumExp([]float32{sum, s.sinks[head]})
}

// sink returns the addend of a head's sink to the sum of exponentials relative to top.
func (s Score) sink(head int, top float32) float32 {
	if s.sinks == nil {
		return 0
	}
	return f32.Exp(s.sinks[head] - top)
}

// bound turns products into scores if they are capped. Otherwise the softmax kernel scales them.
func (s Score) bound(products []float32) {
	if s.Cap != 0 {
		s.Of(products)
	}
}

// kernelScale returns the factor that remains for the softmax kernel after bound.
func (s Score) kernelScale() float32 {
	if s.Sinks != nil {
		panic("tensor: attention with the sinks of all heads: use Score.Heads")
	}
	if s.Cap != 0 {
		return 1
	}
	return s.Scale
}
