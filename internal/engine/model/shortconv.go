package model

// The short convolution of LFM2 (Liquid AI). With h the normalized input:
//
//	B, C, x = Joint h                                     (hidden) each
//	y       = C * (conv(B * x) + bias)                    causal, one filter of Taps weights a channel
//	x_residual += Out y
//
// The last Taps-1 rows of B*x are the state of a sequence. In terms of Delta there are as many key heads
// as KV heads, each with one value head and no keys. Rows of In are B, C and x of a key head.

// shortRow is the stored position of row r of In.
func (d *Delta) shortRow(r int) int {
	head, at := r/d.Width(), r%d.Width()
	return at/d.ValueDim*d.values() + head*d.ValueDim + at%d.ValueDim
}

// shortConv lists the tensors of a layer.
func (s *specs) shortConv(c *Config, l *DeltaSpec) {
	d := &c.Delta
	s.linear(l.Joint, 3*d.values(), c.Hidden)
	s.add(l.Conv, d.values(), 1, d.Taps)
	s.add(l.ConvBias, d.values())
	s.linear(l.Out, c.Hidden, d.values())
}
