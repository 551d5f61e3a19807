package recurrent

// The short convolution of LFM2 (Liquid AI). With h the normalized input:
//
//	B, C, x   = Joint h                                   (hidden) each
//	y         = C * conv(B * x)                           causal, one filter of Taps weights a channel
//	residual += Out y
//
// The last Taps-1 rows of B*x are the state of a sequence. In terms of Mixer there are as many key heads
// as KV heads, each with one value head and no keys. Rows of In are B, C and x of a key head.

// shortRow returns the stored position of row r of In.
func (d *Mixer) shortRow(r int) int {
	head, at := r/d.Width(), r%d.Width()
	return at/d.ValueDim*d.Values() + head*d.ValueDim + at%d.ValueDim
}
