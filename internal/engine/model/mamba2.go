package model

import (
	"encoding/json"
	"errors"
	"math"
	"strings"

	"github.com/shoal-llm/shoal/internal/engine/modelfile"
)

// Mamba-2 (Dao and Gu, arXiv 2405.21060), the mixer of Granite 4 hybrid and others. With h the
// normalized input and t the token:
//
//	z, x, B, C, dt = Joint h                              (heads*P) twice, (Groups*N) twice, (heads)
//	x, B, C        = SiLU(conv(x, B, C) + bias)           causal, one filter of Taps weights a channel
//	dt             = softplus(dt + DtBias), within TimeStep
//	S              = exp(-exp(ALog) dt) S + B (dt x)ᵀ      (N, P) of each head
//	y              = Sᵀ C + D x
//	x_residual    += Out RMSNorm(y * SiLU(z), Norm)       over the heads of each group
//
// A head reads B and C of its group. In terms of Delta, a head is a value head, P is ValueDim, N is
// KeyDim, C is q, B is k, and x is v. KeyHeads may be larger than Groups: then key heads share B and C,
// and each computes them, so that more sockets can divide the heads. No number of sockets changes that.

// setHeads chooses the number of key heads: the smallest multiple of the groups that divides the heads
// and is not below the number of KV heads. If there is none, it is the number of groups.
func (d *Delta) setHeads(kvHeads int) {
	d.KeyHeads = d.Groups
	for n := d.Groups; n <= d.ValueHeads; n += d.Groups {
		if n >= kvHeads && d.ValueHeads%n == 0 {
			d.KeyHeads = n
			return
		}
	}
}

// readMamba reads the width of heads, and checks the sizes of d. dim and heads name the settings.
func (d *Delta) readMamba(f *fields, c *Config, dim string, width int, heads string) {
	if string(f.raw[dim]) == `"auto"` {
		delete(f.raw, dim)
	}
	d.ValueDim = f.Size(dim, max(1, width), maxHeadDim)
	switch {
	case f.err != nil:
	case d.ValueHeads%d.Groups != 0:
		f.fail(heads, ErrFormat, "%d is not a multiple of the %d groups", d.ValueHeads, d.Groups)
	default:
		d.setHeads(c.KVHeads)
	}
}

// timeStep reads the bounds of dt; zero: none.
func (f *fields) timeStep(key string) (limits [2]float32) {
	var v []json.RawMessage // the second may be Infinity, which Go cannot decode, or transformers' form of it
	if !f.get(key, &v, "two numbers") {
		return limits
	}
	lo, hi := 0.0, math.MaxFloat32
	var err error
	if len(v) == 2 {
		if err = json.Unmarshal(v[0], &lo); !strings.Contains(modelfile.Words(string(v[1])), "Infinity") {
			err = errors.Join(err, json.Unmarshal(v[1], &hi))
		}
	}
	if len(v) != 2 || err != nil || lo < 0 || hi <= lo || hi > math.MaxFloat32 {
		f.fail(key, ErrFormat, "%s is not a lower and a higher bound", clip(modelfile.Words(string(f.raw[key]))))
		return limits
	}
	if lo == 0 && hi == math.MaxFloat32 {
		return limits
	}
	return [2]float32{float32(lo), float32(hi)}
}

// mambaRow is the stored position of row r of In: C, B, x and z of a key head.
func (d *Delta) mambaRow(r int) int {
	if head, at := r/d.Width(), r%d.Width(); at >= d.channels() {
		return head*d.group() + at - d.channels()
	} else {
		return d.values() + d.mambaChannel(head*d.channels()+at)
	}
}

// mambaChannel is the stored position of channel c of the convolution. Files have x, B, C.
func (d *Delta) mambaChannel(c int) int {
	head, at := c/d.channels(), c%d.channels()
	group := head * d.Groups / d.KeyHeads
	switch {
	case at < d.KeyDim:
		return d.values() + (d.Groups+group)*d.KeyDim + at
	case at < 2*d.KeyDim:
		return d.values() + group*d.KeyDim + at - d.KeyDim
	}
	return head*d.group() + at - 2*d.KeyDim
}

// mamba2 lists the tensors of a layer.
func (s *specs) mamba2(c *Config, l *DeltaSpec) {
	d := &c.Delta
	channels := d.values() + 2*d.Groups*d.KeyDim
	s.linear(l.Joint, d.values()+channels+d.ValueHeads, c.Hidden)
	s.add(l.Conv, channels, 1, d.Taps)
	s.add(l.ConvBias, channels)
	s.add(l.DtBias, d.ValueHeads)
	s.add(l.ALog, d.ValueHeads)
	s.add(l.D, d.ValueHeads)
	s.add(l.Norm, d.values())
	s.linear(l.Out, c.Hidden, d.values())
}

// mambaLayer replaces the attention of a layer. p is the prefix of the mixer's names.
func (c *Config) mambaLayer(l *LayerSpec, p string) {
	l.Q, l.K, l.V, l.O, l.QNorm, l.KNorm = Linear{}, Linear{}, Linear{}, Linear{}, "", ""
	l.Delta = &DeltaSpec{
		Joint: linear(p+"in_proj", false), Conv: p + "conv1d.weight", DtBias: p + "dt_bias", ALog: p + "A_log", D: p + "D", Out: linear(p+"out_proj", false),
	}
	if c.Delta.ConvBias {
		l.Delta.ConvBias = p + "conv1d.bias"
	}
	if !c.Delta.NoNorm {
		l.Delta.Norm = p + "norm.weight"
	}
}
