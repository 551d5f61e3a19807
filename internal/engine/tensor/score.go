package tensor

// Score specifies the weight of a key in attention: the softmax, over slots, of Scale times the
// product of the key and the query.
type Score struct {
	Scale float32
	// Cap, unless 0, bounds scores: they are Cap*tanh(score/Cap) before the softmax (Gemma 2, arXiv
	// 2408.00118, section 2).
	Cap float32
	// Sink, where HasSink is set, is one more score of the softmax, of no slot, as in gpt-oss. No
	// kernel computes it yet: a model that needs it is refused when it is opened.
	Sink    float32
	HasSink bool
}

// Of turns products of keys and a query into scores.
func (s Score) Of(products []float32) {
	Scale(products, s.Scale)
	if s.Cap != 0 {
		SoftCap(products, s.Cap)
	}
}

// bound turns products into scores if they are capped. Otherwise the softmax kernel scales them.
func (s Score) bound(products []float32) {
	if s.Cap != 0 {
		s.Of(products)
	}
}

// kernelScale is the factor that remains for the softmax kernel after bound.
func (s Score) kernelScale() float32 {
	if s.HasSink {
		panic("tensor: no kernel computes sinks")
	}
	if s.Cap != 0 {
		return 1
	}
	return s.Scale
}
