package families

import (
	"encoding/json"
	"errors"
	"math"
	"strings"

	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/modelfile"
)

// readMamba reads the width of heads, and checks the sizes of c.Delta. dim and heads name the settings.
func readMamba(c *model.Config, f *model.Fields, dim string, width int, heads string) {
	if string(f.Raw[dim]) == `"auto"` {
		f.Drop(dim)
	}
	d := &c.Delta
	d.ValueDim = f.Size(dim, max(1, width), model.MaxHeadDim)
	switch {
	case f.Err != nil:
	case d.ValueHeads%d.Groups != 0:
		f.Fail(heads, model.ErrFormat, "%d is not a multiple of the %d groups", d.ValueHeads, d.Groups)
	default:
		d.SetHeads(c.KVHeads)
	}
}

// timeStep reads the bounds of dt. The result is zero if there are none.
func timeStep(f *model.Fields, key string) (limits [2]float32) {
	var v []json.RawMessage // the second may be Infinity, which Go cannot decode, or transformers' form of it
	if !f.Get(key, &v, "two numbers") {
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
		f.Fail(key, model.ErrFormat, "%s is not a lower and a higher bound", model.Clip(modelfile.Words(string(f.Raw[key]))))
		return limits
	}
	if lo == 0 && hi == math.MaxFloat32 {
		return limits
	}
	return [2]float32{float32(lo), float32(hi)}
}

// mambaLayer replaces the attention of a layer by Mamba-2. p is the prefix of the mixer's names.
func mambaLayer(c *model.Config, l *model.LayerSpec, p string) {
	l.Q, l.K, l.V, l.O, l.QNorm, l.KNorm = model.Linear{}, model.Linear{}, model.Linear{}, model.Linear{}, "", ""
	l.Delta = &model.DeltaSpec{
		Joint: model.Projection(p+"in_proj", false), Conv: p + "conv1d.weight", DtBias: p + "dt_bias", ALog: p + "A_log", D: p + "D",
		Out: model.Projection(p+"out_proj", false),
	}
	if c.Delta.ConvBias {
		l.Delta.ConvBias = p + "conv1d.bias"
	}
	if !c.Delta.NoNorm {
		l.Delta.Norm = p + "norm.weight"
	}
}
