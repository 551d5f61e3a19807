package model

import "slices"

// Delta is the gated delta rule (Yang et al., arXiv 2412.06464), which replaces attention in the
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
// convolution are the state of a sequence, see docs/decisions/recurrent-state.md.
type Delta struct {
	KeyHeads   int // 0: every layer has attention
	ValueHeads int // a multiple of KeyHeads
	KeyDim     int
	ValueDim   int
	Taps       int
	Full       []int // layers with attention, ascending
	Negated    bool  `json:",omitempty"` // ALog holds -exp(ALog), as in GGUF
}

// DeltaSpec names the tensors of a linear layer. The rows of In are used in the order of key heads:
// q, k, v and z of the first, then those of the next. Those of Gates are b, then a. InRow, GateRow
// and Channel say where a file has them.
type DeltaSpec struct {
	QKV, Z Linear // (2*keys + values, hidden) q, then k, then v; (values, hidden)
	B, A   Linear // (value heads, hidden)
	Joint  Linear // instead of QKV and Z: the rows of In
	BA     Linear // instead of B and A: b, then a of each key head's value heads
	Conv   string // (2*keys + values, 1, Taps), channels as the rows of QKV
	DtBias string // (value heads)
	ALog   string // (value heads)
	Norm   string // (ValueDim)
	Out    Linear // (hidden, values)
}

func (d *Delta) keys() int   { return d.KeyHeads * d.KeyDim }
func (d *Delta) values() int { return d.ValueHeads * d.ValueDim }

// channels is the number of rows of q, k and v of one key head, and width that with z.
func (d *Delta) channels() int { return 2*d.KeyDim + d.ValueHeads/d.KeyHeads*d.ValueDim }
func (d *Delta) width() int    { return d.channels() + d.ValueHeads/d.KeyHeads*d.ValueDim }

// InRow is the projection that holds row r of In, and its row there.
func (s *DeltaSpec) InRow(d *Delta, r int) (Linear, int) {
	if s.Joint.Weight != "" {
		return s.Joint, r
	}
	head, at := r/d.width(), r%d.width()
	if at >= d.channels() {
		return s.Z, head*(d.width()-d.channels()) + at - d.channels()
	}
	return s.QKV, s.Channel(d, head*d.channels()+at)
}

// GateRow is the projection that holds row r of Gates, and its row there.
func (s *DeltaSpec) GateRow(d *Delta, r int) (Linear, int) {
	second, head := r/d.ValueHeads, r%d.ValueHeads
	if s.BA.Weight != "" {
		group := d.ValueHeads / d.KeyHeads
		return s.BA, (head/group*2+second)*group + head%group
	}
	if second > 0 {
		return s.A, head
	}
	return s.B, head
}

// Channel is the stored position of channel c of the convolution.
func (s *DeltaSpec) Channel(d *Delta, c int) int {
	head, at := c/d.channels(), c%d.channels()
	switch {
	case at < d.KeyDim:
		return head*d.KeyDim + at
	case at < 2*d.KeyDim:
		return d.keys() + head*d.KeyDim + at - d.KeyDim
	}
	return 2*d.keys() + head*(d.channels()-2*d.KeyDim) + at - 2*d.KeyDim
}

// delta lists the tensors of a linear layer.
func (s *specs) delta(c *Config, l *DeltaSpec) {
	d := &c.Delta
	s.linear(l.Joint, 2*d.keys()+2*d.values(), c.Hidden)
	s.linear(l.BA, 2*d.ValueHeads, c.Hidden)
	s.linear(l.QKV, 2*d.keys()+d.values(), c.Hidden)
	s.linear(l.Z, d.values(), c.Hidden)
	s.linear(l.B, d.ValueHeads, c.Hidden)
	s.linear(l.A, d.ValueHeads, c.Hidden)
	s.add(l.Conv, 2*d.keys()+d.values(), 1, d.Taps)
	s.add(l.DtBias, d.ValueHeads)
	s.add(l.ALog, d.ValueHeads)
	s.add(l.Norm, d.ValueDim)
	s.linear(l.Out, c.Hidden, d.values())
}

// Recurrent reports whether a layer has the gated delta rule instead of attention.
func (c *Config) Recurrent(layer int) bool {
	return c.Delta.KeyHeads > 0 && !slices.Contains(c.Delta.Full, layer)
}

// RecurrentLayers is the number of these layers.
func (c *Config) RecurrentLayers() int {
	if c.Delta.KeyHeads == 0 {
		return 0
	}
	return c.Layers - len(c.Delta.Full)
}

// before is the number of layers before layer i that are, or are not, recurrent.
func (c *Config) before(i int, recurrent bool) (n int) {
	for j := range i {
		if c.Recurrent(j) == recurrent {
			n++
		}
	}
	return n
}

// Limits of the gated delta rule, several times the largest published.
const (
	maxTaps       = 16
	maxDeltaWidth = 1 << 22 // of all rows of In
)

// readDelta reads the sizes of linear layers and the list of layers with attention.
func readDelta(f *fields, c *Config) {
	d := &c.Delta
	d.KeyHeads = f.Size("linear_num_key_heads", 16, maxHeads)
	d.ValueHeads = f.Size("linear_num_value_heads", 32, maxHeads)
	d.KeyDim = f.Size("linear_key_head_dim", 128, maxHeadDim)
	d.ValueDim = f.Size("linear_value_head_dim", 128, maxHeadDim)
	d.Taps = f.Size("linear_conv_kernel_dim", 4, maxTaps)
	key := "full_attention_interval"
	interval := f.Size(key, 4, maxLayers)
	full := func(i int) bool { return (i+1)%interval == 0 }
	var kinds []string
	if f.get("layer_types", &kinds, "a list of names") {
		key = "layer_types"
		if len(kinds) != c.Layers {
			f.fail("layer_types", ErrFormat, "%d entries for %d layers", len(kinds), c.Layers)
			return
		}
		for i, k := range kinds {
			if k != "linear_attention" && k != "full_attention" {
				f.fail("layer_types", ErrUnsupported, "layer %d: %q is not supported; known: full_attention, linear_attention", i, clip(k))
				return
			}
		}
		full = func(i int) bool { return kinds[i] == "full_attention" }
	}
	for i := range c.Layers {
		if full(i) {
			d.Full = append(d.Full, i)
		}
	}
	switch {
	case f.err != nil:
	case d.ValueHeads%d.KeyHeads != 0:
		f.fail("linear_num_value_heads", ErrFormat, "%d is not a multiple of the %d key heads", d.ValueHeads, d.KeyHeads)
	case d.KeyHeads*d.width() > maxDeltaWidth:
		f.fail("linear_num_value_heads", ErrOutOfRange, "the projection of a linear layer has %d rows, more than %d", d.KeyHeads*d.width(), maxDeltaWidth)
	case len(d.Full) == 0:
		f.fail(key, ErrUnsupported, "none of the %d layers has attention; at least one must", c.Layers)
	case len(d.Full) == c.Layers:
		*d = Delta{}
	}
}

// linearLayer replaces the attention of a layer. p is the prefix of its names.
func linearLayer(l *LayerSpec, p string) {
	p += "linear_attn."
	l.Q, l.K, l.V, l.QNorm, l.KNorm = Linear{}, Linear{}, Linear{}, "", ""
	l.O = Linear{}
	l.Delta = &DeltaSpec{
		QKV: linear(p+"in_proj_qkv", false), Z: linear(p+"in_proj_z", false), B: linear(p+"in_proj_b", false), A: linear(p+"in_proj_a", false),
		Conv: p + "conv1d.weight", DtBias: p + "dt_bias", ALog: p + "A_log", Norm: p + "norm.weight", Out: linear(p+"out_proj", false),
	}
}

// gatedQuery divides the query projection: the rows of each head are its query, then its output
// gate.
func (c *Config) gatedQuery(l *LayerSpec) {
	l.Q.Of, l.Q.Run, l.Q.Gap = 2*c.Heads*c.HeadDim, c.HeadDim, c.HeadDim
	l.QGate = l.Q
	l.QGate.First, l.QGate.Order = c.HeadDim, Order{}
}

// slot is the number of the cache, or of the recurrent state, of a layer.
func (c *Config) slot(layer int) int { return c.before(layer, c.Recurrent(layer)) }
