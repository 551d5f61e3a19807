package recurrent

// Mamba-2 (Dao and Gu, arXiv 2405.21060), the mixer of Granite 4 hybrid. With h the normalized input and
// t the token:
//
//	z, x, B, C, dt = Joint h                              (heads*P) twice, (Groups*N) twice, (heads)
//	x, B, C        = SiLU(conv(x, B, C) + bias)           causal, one filter of Taps weights a channel
//	dt             = softplus(dt + DtBias), within TimeStep
//	S              = exp(-exp(ALog) dt) S + B (dt x)ᵀ      (N, P) of each head
//	y              = Sᵀ C + D x
//	residual      += Out RMSNorm(y * SiLU(z), Norm)       over the heads of each group
//
// A head reads B and C of its group. In terms of Mixer, a head is a value head, P is ValueDim, N is
// KeyDim, C is q, B is k, and x is v. KeyHeads may be larger than Groups: then key heads share B and C,
// and each computes them, so that more sockets can divide the heads. No number of sockets changes that.

// Factors multiply z, x, B, C and dt right after the projection; 0 counts as 1. The convolution is linear,
// so it takes those of x, B and C into its filters: see ChannelFactor.
type Factors struct{ Z, X, B, C, Dt float32 }

// ChannelFactor returns the factor of channel c of the convolution.
func (d *Mixer) ChannelFactor(c int) float32 {
	f := d.Factors.X
	switch at := c % d.Channels(); {
	case at < d.KeyDim:
		f = d.Factors.C
	case at < 2*d.KeyDim:
		f = d.Factors.B
	}
	if f == 0 {
		return 1
	}
	return f
}

// SetHeads chooses the number of key heads: the smallest multiple of the groups that divides the heads
// and is not below the number of KV heads. If there is none, it is the number of groups.
func (d *Mixer) SetHeads(kvHeads int) {
	d.KeyHeads = d.Groups
	for n := d.Groups; n <= d.ValueHeads; n += d.Groups {
		if n >= kvHeads && d.ValueHeads%n == 0 {
			d.KeyHeads = n
			return
		}
	}
}

// mambaRow returns the stored position of row r of In: C, B, x and z of a key head.
func (d *Mixer) mambaRow(r int) int {
	head, at := r/d.Width(), r%d.Width()
	if at >= d.Channels() {
		return head*d.GroupWidth() + at - d.Channels()
	}
	return d.Values() + d.mambaChannel(head*d.Channels()+at)
}

// mambaChannel returns the stored position of channel c of the convolution. Files have x, B, C.
func (d *Mixer) mambaChannel(c int) int {
	head, at := c/d.Channels(), c%d.Channels()
	group := head * d.Groups / d.KeyHeads
	switch {
	case at < d.KeyDim:
		return d.Values() + (d.Groups+group)*d.KeyDim + at
	case at < 2*d.KeyDim:
		return d.Values() + group*d.KeyDim + at - d.KeyDim
	}
	return head*d.GroupWidth() + at - 2*d.KeyDim
}
