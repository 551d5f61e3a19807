package model

import (
	"encoding/json"
	"errors"
	"math"
	"strings"

	"github.com/shoal-llm/shoal/internal/engine/modelfile"
)

// readMamba reads the width of heads, and checks the sizes of Delta. dim and heads name the settings.
func (c *Config) readMamba(f *fields, dim string, width int, heads string) {
	if string(f.raw[dim]) == `"auto"` {
		delete(f.raw, dim)
	}
	d := &c.Delta
	d.ValueDim = f.Size(dim, max(1, width), maxHeadDim)
	switch {
	case f.err != nil:
	case d.ValueHeads%d.Groups != 0:
		f.fail(heads, ErrFormat, "%d is not a multiple of the %d groups", d.ValueHeads, d.Groups)
	default:
		d.SetHeads(c.KVHeads)
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

// joint lists the tensors of a layer with Mamba2 or ShortConv. A layer has those that it names.
func (s *specs) joint(c *Config, l *DeltaSpec) {
	d := &c.Delta
	s.linear(l.Joint, d.JointRows(), c.Hidden)
	s.add(l.Conv, d.StoredChannels(), 1, d.Taps)
	s.add(l.ConvBias, d.StoredChannels())
	s.add(l.DtBias, d.ValueHeads)
	s.add(l.ALog, d.ValueHeads)
	s.add(l.D, d.ValueHeads)
	s.add(l.Norm, d.Values())
	s.linear(l.Out, c.Hidden, d.Values())
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
