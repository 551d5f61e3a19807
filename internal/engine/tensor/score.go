package tensor

// Score specifies the weight of a key in attention: the softmax, over slots, of Scale times the
// product of the key and the query.
type Score struct {
	Scale float32
	// Cap, unless 0, bounds scores by Cap*tanh(score/Cap), as in Gemma 2. Sink, where HasSink is
	// set, is one more score of the softmax, of no slot, as in gpt-oss. No kernel computes either
	// yet: a model that needs them is refused when it is opened.
	Cap     float32
	Sink    float32
	HasSink bool
}

// kernelScale is the scale of a score that is only scaled, which is all that kernels know.
func (s Score) kernelScale() float32 {
	if s.Cap != 0 || s.HasSink {
		panic("tensor: no kernel computes capped attention scores or sinks")
	}
	return s.Scale
}
