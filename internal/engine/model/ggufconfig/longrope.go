package ggufconfig

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/shoal-llm/shoal/internal/attempt"
	"github.com/shoal-llm/shoal/internal/engine/gguf"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/model/rotary"
)

// LongRope maps the two lists of longrope to the tensors that hold them.
var LongRope = map[string]string{"short_factor": "rope_factors_short.weight", "long_factor": "rope_factors_long.weight"}

// longRope reads both lists, if a file has either. llama.cpp's converter writes no
// rope.scaling.type for them.
func (m *metadata) longRope() {
	scaling := map[string]any{"rope_type": rotary.LongRope}
	for field, name := range LongRope {
		m.from["rope_scaling."+field] = name
		if at := slices.IndexFunc(m.tensors, func(t gguf.Tensor) bool { return t.Name == name }); at >= 0 {
			scaling[field] = divisorsGGUF(m.tensors[at])
		}
	}
	if len(scaling) == 1 {
		return
	}
	const factor, original = "rope.scaling.attn_factor", "rope.scaling.original_context_length"
	for field, key := range map[string]string{"attention_factor": factor, "original_max_position_embeddings": original} {
		key = m.arch + "." + key
		if _, ok := m.f.Value(key); !ok {
			panic(attempt.Failure{Err: &model.Error{Field: key, Kind: model.ErrMissing,
				Detail: fmt.Sprintf("missing, with %s or %s", LongRope["short_factor"], LongRope["long_factor"])}})
		}
		m.from["rope_scaling."+field] = key
	}
	scaling["attention_factor"] = m.number(factor, 1)
	scaling["original_max_position_embeddings"] = attempt.Must(m.f.Int(m.arch+"."+original, 0, 1, model.MaxPositions))
	if other, ok := m.config["rope_scaling"]; ok {
		panic(attempt.Failure{Err: &model.Error{Field: m.from["rope_scaling"], Kind: model.ErrUnsupported,
			Detail: fmt.Sprintf("%v conflicts with %s", other, LongRope["long_factor"])}})
	}
	m.set("rope_scaling", LongRope["long_factor"], scaling)
}

// divisorsGGUF reads a list of float32.
func divisorsGGUF(t gguf.Tensor) []float64 {
	if t.Type != gguf.F32 || len(t.Shape) != 1 || t.Shape[0] > model.MaxHeadDim {
		panic(attempt.Failure{Err: &model.Error{Tensor: t.Name, Kind: model.ErrMismatch,
			Detail: fmt.Sprintf("is %v of shape %v; want F32 with one factor for each pair of a head that rotates", t.Type, t.Shape)}})
	}
	list := make([]float64, t.Shape[0])
	for i := range list {
		v := float64(math.Float32frombits(binary.LittleEndian.Uint32(t.Data[4*i:])))
		if !(v >= 1e-6 && v <= 1e6) { // JSON has no NaN
			panic(attempt.Failure{Err: &model.Error{Tensor: t.Name, Kind: model.ErrOutOfRange,
				Detail: fmt.Sprintf("element %d, %g, is outside 1e-06..1e+06", i, v)}})
		}
		list[i] = v
	}
	return list
}
