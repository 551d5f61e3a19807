package quantform

import (
	"fmt"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/gguf/dequant"
)

// FP4: two neighbours of a row share a byte, the first in its low half. They are floats e2m1 with a
// scale for each group of columns.
//
//	MXFP4 (OCP Microscaling Formats 1.0): groups of 32, scales are powers of two
//	NVFP4: groups of 16, scales are float8_e4m3fn, with one more factor for the matrix. compressed-tensors
//	divides by weight_global_scale, ModelOpt multiplies by weight_scale_2.

// mxfp4Form is mxfp4-pack-quantized of compressed-tensors, and that of gpt-oss's experts, see Experts.
var mxfp4Form = &Form{
	Name: "mxfp4", Methods: []string{"compressed-tensors", "mxfp4"},
	Codes: ".weight_packed", Types: []string{"U8"}, Parts: []string{".weight_scale"},
	Becomes: "mxfp4, exact if scales are within 2^-23 and 2^16",
	build: func(_ *Settings, m *module) (*Matrix, error) {
		scale, ok := m.part(".weight_scale")
		rows, cols := m.codes.Shape[0], 2*m.codes.Shape[1]
		if !ok || cols%mxWidth != 0 || !scale.shaped(rows, cols/mxWidth, "U8", "F8_E8M0") {
			return nil, m.bad(".weight_scale", scale, ok, fmt.Sprintf("U8 %v", []int{rows, cols / mxWidth}))
		}
		return mxfp4(*m.codes, *scale, rows, cols, 0, 1), nil
	},
}

var nvfp4Form = &Form{
	Name: "nvfp4", Methods: []string{"compressed-tensors"},
	Codes: ".weight_packed", Types: []string{"U8"}, Parts: []string{".weight_scale", ".weight_global_scale"}, Needs: ".weight_global_scale",
	Becomes: "q8_0; blocks of 32 with one scale replace blocks of 16",
	build: func(_ *Settings, m *module) (*Matrix, error) {
		return buildNVFP4(m, ".weight_global_scale", true)
	},
}

var nvfp4ModelOptForm = &Form{
	Name: "nvfp4", Methods: []string{"modelopt"},
	Codes: ".weight", Types: []string{"U8"}, Parts: []string{".weight_scale", ".weight_scale_2"},
	Becomes: "q8_0; blocks of 32 with one scale replace blocks of 16",
	build:   func(_ *Settings, m *module) (*Matrix, error) { return buildNVFP4(m, ".weight_scale_2", false) },
}

const (
	mxWidth = 32 // columns of a group of MXFP4
	nvWidth = 16 // and of NVFP4
)

// Experts returns the rows first, first+each and so on of one matrix in a stack of gpt-oss: codes (rows,
// columns/32, 16) and scales (rows, columns/32), both U8. cols is a multiple of 32.
func Experts(codes, scales Part, rows, cols, first, each int) *Matrix {
	m := mxfp4(codes, scales, rows, cols, first, each)
	m.Form = mxfp4Form
	return m
}

func mxfp4(codes, scales Part, rows, cols, first, each int) *Matrix {
	blocks := cols / mxWidth
	m := &Matrix{Rows: rows, Cols: cols, Parts: []Part{codes, scales}}
	m.Row = func(dst []float32, r, lo int) {
		dequant.FP4Row(dst, codes.Data, scales.Data, (first+r*each)*blocks, lo)
	}
	m.Codes = func(q *[Block]int16, r, lo int) (int16, float32, bool) {
		at := (first+r*each)*blocks + lo/mxWidth
		for i, b := range codes.Data[at*mxWidth/2:][:mxWidth/2] {
			q[2*i], q[2*i+1] = int16(dequant.FP4[b&15]), int16(dequant.FP4[b>>4])
		}
		return 0, dequant.FP4Scale(scales.Data[at]), true
	}
	if each == 1 && first == 0 {
		m.ranges = func(part int, r, c span) (span, span) {
			if part == 0 {
				return r, c.per(2)
			}
			return r, c.per(mxWidth)
		}
	}
	m.check = func() (bad int64, zero bool) {
		for _, b := range scales.Data {
			if b == dequant.FP4NaN {
				bad += mxWidth
			}
		}
		return bad, !slices.ContainsFunc(codes.Data, func(b byte) bool { return b&0x77 != 0 })
	}
	return m
}

func buildNVFP4(m *module, suffix string, divides bool) (*Matrix, error) {
	scale, ok := m.part(".weight_scale")
	global, there := m.part(suffix)
	rows, cols := m.codes.Shape[0], 2*m.codes.Shape[1]
	if !ok || cols%nvWidth != 0 || !scale.shaped(rows, cols/nvWidth, "F8_E4M3") {
		return nil, m.bad(".weight_scale", scale, ok, fmt.Sprintf("F8_E4M3 %v", []int{rows, cols / nvWidth}))
	}
	if !there || !global.is(1, "F32") {
		return nil, m.bad(suffix, global, there, "F32 [1]")
	}
	out := &Matrix{Rows: rows, Cols: cols, Parts: []Part{*m.codes, *scale, *global}}
	groups := cols / nvWidth
	out.Row = func(dst []float32, r, lo int) {
		all := global.float(0)
		for i := range dst {
			c := lo + i
			s := dequant.E4M3[scale.Data[r*groups+c/nvWidth]]
			if divides {
				s /= all
			} else {
				s *= all
			}
			dst[i] = dequant.FP4[m.codes.Data[r*cols/2+c/2]>>(c%2*4)&15] / 2 * s
		}
	}
	out.ranges = func(part int, r, c span) (span, span) {
		if part == 0 {
			return r, c.per(2)
		}
		return r, c.per(nvWidth)
	}
	out.check = func() (bad int64, zero bool) {
		bad, zero = plainCheck(m.codes, 0x77, scale, global)()
		if v := global.float(0); divides && v == 0 {
			bad++
		}
		return bad, zero
	}
	return out, nil
}
