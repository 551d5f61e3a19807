package quantform

import (
	"encoding/json"
	"fmt"
	"math"
)

// nf4Form is bitsandbytes' 4 bits (QLoRA, arXiv 2305.14314): indexes into a table of 16 floats times
// the largest magnitude of a block of neighbours in the flattened matrix. Two neighbours share a byte,
// the first in its high half. With double quantization the magnitudes are bytes: indexes into a second
// table, times a factor for each of their blocks, plus an offset.
var nf4Form = &Form{
	Name: "bnb_4bit", Methods: []string{"bitsandbytes"},
	Codes: ".weight", Types: []string{"U8"},
	Parts: []string{".weight.absmax", ".weight.quant_map", ".weight.nested_absmax", ".weight.nested_quant_map",
		".weight.quant_state.bitsandbytes__nf4", ".weight.quant_state.bitsandbytes__fp4"},
	Becomes: "q8_0; the table's values are rounded to 8 bits",
	build:   buildNF4,
}

// state is quant_state.bitsandbytes__nf4, as JSON.
type state struct {
	Type        string  `json:"quant_type"`
	Block       int     `json:"blocksize"`
	Shape       []int   `json:"shape"`
	NestedBlock int     `json:"nested_blocksize"`
	Offset      float64 `json:"nested_offset"`
}

// maxState bounds the JSON of a state.
const maxState = 1 << 12

func buildNF4(_ *Settings, m *module) (*Matrix, error) {
	text, ok := m.part(".weight.quant_state.bitsandbytes__nf4")
	suffix := ".weight.quant_state.bitsandbytes__nf4"
	if !ok {
		if text, ok = m.part(".weight.quant_state.bitsandbytes__fp4"); ok {
			suffix = ".weight.quant_state.bitsandbytes__fp4"
		}
	}
	if !ok || !text.typed("U8") || len(text.Data) > maxState {
		return nil, m.bad(suffix, text, ok, fmt.Sprintf("U8 of at most %d bytes", maxState))
	}
	var s state
	if err := json.Unmarshal(text.Data, &s); err != nil {
		return nil, &Error{Tensor: m.name + suffix, Kind: ErrFormat, Detail: "is not JSON: " + err.Error()}
	}
	n := 2 * len(m.codes.Data)
	if len(s.Shape) != 2 || s.Shape[0] < 1 || s.Shape[1] < 1 || s.Shape[0] > n/s.Shape[1] || s.Shape[0]*s.Shape[1] != n ||
		s.Block < 1 || s.Block > n || n%s.Block != 0 {
		return nil, &Error{Tensor: m.name + suffix, Kind: ErrMismatch,
			Detail: fmt.Sprintf("shape %v in blocks of %d; %s has %d elements", s.Shape, s.Block, m.codes.Name, n)}
	}
	rows, cols, blocks := s.Shape[0], s.Shape[1], n/s.Block
	table, ok := m.part(".weight.quant_map")
	if !ok || !table.is(16, "F32") {
		return nil, m.bad(".weight.quant_map", table, ok, "F32 [16]")
	}
	top, ok := m.part(".weight.absmax")
	parts := []Part{*m.codes, *text, *table, *top}
	var scale func(i int) float32
	var checked []*Part
	switch {
	case ok && top.is(blocks, "F32"):
		scale, checked = top.float, []*Part{table, top}
	case ok && top.is(blocks, "U8"):
		values, ok := m.part(".weight.nested_quant_map")
		if !ok || !values.is(256, "F32") {
			return nil, m.bad(".weight.nested_quant_map", values, ok, "F32 [256]")
		}
		if s.NestedBlock < 1 || math.IsNaN(s.Offset) || math.Abs(s.Offset) > math.MaxFloat32 {
			return nil, &Error{Tensor: m.name + suffix, Kind: ErrOutOfRange,
				Detail: fmt.Sprintf("nested_blocksize %d, nested_offset %g", s.NestedBlock, s.Offset)}
		}
		nested, ok := m.part(".weight.nested_absmax")
		if want := (blocks + s.NestedBlock - 1) / s.NestedBlock; !ok || !nested.is(want, "F32") {
			return nil, m.bad(".weight.nested_absmax", nested, ok, fmt.Sprintf("F32 [%d]", want))
		}
		scale = func(i int) float32 {
			return float32(values.float(int(top.Data[i]))*nested.float(i/s.NestedBlock)) + float32(s.Offset)
		}
		parts, checked = append(parts, *values, *nested), []*Part{table, values, nested}
	default:
		return nil, m.bad(".weight.absmax", top, ok, fmt.Sprintf("F32 or U8 [%d]", blocks))
	}
	out := &Matrix{Rows: rows, Cols: cols, Parts: parts}
	out.Row = func(dst []float32, r, lo int) {
		block, factor := -1, float32(0)
		for i := range dst {
			k := r*cols + lo + i
			if b := k / s.Block; b != block {
				block, factor = b, scale(b)
			}
			dst[i] = table.float(int(m.codes.Data[k/2]>>(4-k%2*4)&15)) * factor
		}
	}
	if m.codes.Shape[0] == len(m.codes.Data) { // [n/2, 1]
		out.ranges = func(part int, r, c span) (span, span) {
			if part != 0 {
				return span{0, math.MaxInt}, span{0, math.MaxInt}
			}
			return span{r.lo * cols / 2, (r.hi*cols + 1) / 2}, span{0, 1}
		}
	}
	out.check = func() (bad int64, zero bool) {
		for _, p := range checked {
			n, none := p.notFinite()
			bad, zero = bad+n, zero || none
		}
		return bad, zero
	}
	return out, nil
}
