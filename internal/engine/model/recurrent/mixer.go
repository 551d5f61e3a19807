// Package recurrent describes the mixer that replaces attention in layers with a recurrent state: its
// sizes, and the places of its rows in files. Package actors/layer/mixer computes it.
package recurrent

// Mixer is the gated delta rule (Yang et al., arXiv 2412.06464), which replaces attention in the
// linear layers of Qwen3.5 and Qwen3-Next. With h the normalized input and t the token:
//
//	q, k, v, z = In h                                     (key heads x key dim) twice, (value heads x value dim) twice
//	b, a       = Gates h                                  (value heads) each
//	q, k, v    = SiLU(conv(q, k, v))                      causal, one filter of Taps weights a channel
//	q, k       = q/|q| / sqrt(key dim), k/|k|             of each head; |x| = sqrt(sum x² + 1e-6)
//	beta       = sigmoid(b)
//	decay      = exp(-exp(ALog) softplus(a + DtBias))
//	S          = decay S                                  (key dim, value dim) of each value head
//	S          = S + k (beta (v - Sᵀk))ᵀ
//	x         += Out [RMSNorm(Sᵀq, Norm) * SiLU(z)]
//
// Value head j reads key head j/(value heads/key heads). S and the last Taps-1 inputs of the
// convolution are the state of a sequence, see docs/decisions/cache-layout.md.
//
// Other kinds have the same parts. q, k and v have other names there, see mamba2.go and shortconv.go.
type Mixer struct {
	Kind       Kind `json:",omitempty"`
	KeyHeads   int  // 0: every layer has attention
	ValueHeads int  // a multiple of KeyHeads
	KeyDim     int  // 0: ShortConv
	ValueDim   int
	Taps       int
	Full       []int // layers with attention, ascending
	Negated    bool  `json:",omitempty"` // ALog holds -exp(ALog), as in GGUF
	ConvBias   bool  `json:",omitempty"` // of the convolution
	Groups     int   `json:",omitempty"` // Mamba2: numbers of B, of C and of norms; divides KeyHeads
	NoNorm     bool  `json:",omitempty"` // Mamba2: the output has no norm

	TimeStep [2]float32 `json:",omitzero"` // Mamba2: bounds of dt; zero: none
	Factors  Factors    `json:",omitzero"` // Mamba2
}

// Kind is the recurrence that a Mixer computes.
type Kind uint8

// Kinds.
const (
	GatedDelta Kind = iota
	Mamba2
	ShortConv
)

// Keys and Values are the widths of the keys and of the values of all heads.
func (d *Mixer) Keys() int   { return d.KeyHeads * d.KeyDim }
func (d *Mixer) Values() int { return d.ValueHeads * d.ValueDim }

// GroupWidth returns the width of the values of one key head.
func (d *Mixer) GroupWidth() int { return d.ValueHeads / d.KeyHeads * d.ValueDim }

// Channels returns the number of rows of q, k and v of one key head. Width also counts the rows of z.
func (d *Mixer) Channels() int { return 2*d.KeyDim + d.GroupWidth() }
func (d *Mixer) Width() int {
	if d.Kind == ShortConv {
		return 3 * d.GroupWidth()
	}
	return d.Channels() + d.GroupWidth()
}

// GateRows returns the number of rows of Gates.
func (d *Mixer) GateRows() int {
	switch d.Kind {
	case Mamba2:
		return d.ValueHeads
	case ShortConv:
		return 0
	}
	return 2 * d.ValueHeads
}

// Channel returns the stored position of channel c of the convolution. Files have q, k and v of all heads in
// turn.
func (d *Mixer) Channel(c int) int {
	switch d.Kind {
	case Mamba2:
		return d.mambaChannel(c)
	case ShortConv:
		return c
	}
	head, at := c/d.Channels(), c%d.Channels()
	switch {
	case at < d.KeyDim:
		return head*d.KeyDim + at
	case at < 2*d.KeyDim:
		return d.Keys() + head*d.KeyDim + at - d.KeyDim
	}
	return 2*d.Keys() + head*d.GroupWidth() + at - 2*d.KeyDim
}

// StoredChannels returns the number of channels of the convolution in files, which have each once.
func (d *Mixer) StoredChannels() int {
	groups := d.KeyHeads
	if d.Kind == Mamba2 {
		groups = d.Groups
	}
	return d.Values() + 2*groups*d.KeyDim
}

// JointRows returns the number of rows of a joint projection of Mamba2 or ShortConv.
func (d *Mixer) JointRows() int {
	if d.Kind == ShortConv {
		return 3 * d.Values()
	}
	return d.Values() + d.StoredChannels() + d.ValueHeads
}

// JointRow returns the stored position of row r of In in a joint projection of Mamba2 or ShortConv.
func (d *Mixer) JointRow(r int) int {
	if d.Kind == ShortConv {
		return d.shortRow(r)
	}
	return d.mambaRow(r)
}

// InTurn returns the position of a value head where the heads of key heads are stored in turn.
func (d *Mixer) InTurn(h int) int {
	group := d.ValueHeads / d.KeyHeads
	return h%group*d.KeyHeads + h/group
}
