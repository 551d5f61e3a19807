package quantform

import "fmt"

// int8Form is compressed-tensors' int-quantized: w = (q - z) * scale, with int8 elements and a scale
// for the matrix, each row, or each group of columns. There is a zero point z if the form is
// asymmetric.
var int8Form = &Form{
	Name: "int8", Methods: []string{"compressed-tensors"},
	Codes: ".weight", Types: []string{"I8"}, Parts: []string{".weight_scale", ".weight_zero_point"},
	Becomes: "q8_0; exact if scales are exact in float16",
	build: func(_ *Settings, m *module) (*Matrix, error) {
		return buildInt8(m, ".weight_scale", ".weight_zero_point")
	},
}

// buildInt8 makes a matrix of bytes. scales and zeros are the suffixes of the tensors of scales and
// zero points.
func buildInt8(m *module, scales, zeros string) (*Matrix, error) {
	scale, ok := m.part(scales)
	rows, cols := m.codes.Shape[0], m.codes.Shape[1]
	g, good := groupsOf(scale, rows, cols)
	if !ok || !good {
		return nil, m.bad(scales, scale, ok, fmt.Sprintf("a scale, [%d 1], or one for each group of columns", rows))
	}
	zero, asymmetric := m.part(zeros)
	if asymmetric && !(zero.typed("I8") && fmt.Sprint(zero.Shape) == fmt.Sprint(scale.Shape)) {
		return nil, m.bad(zeros, zero, true, "I8 of the shape of the scales")
	}
	codes := m.codes.Data
	n := numbers{
		rows: rows, cols: cols, group: g.group, code: func(r, c int) int { return int(int8(codes[r*cols+c])) },
		scale: func(r, k int) float32 { return scale.float(g.at(r, k)) },
	}
	parts := []Part{*m.codes, *scale}
	if asymmetric {
		n.zero = func(r, k int) int { return int(int8(zero.Data[g.at(r, k)])) }
		parts = append(parts, *zero)
	}
	out := n.matrix(parts)
	out.ranges = func(part int, r, c span) (span, span) {
		if part == 0 {
			return r, c
		}
		return g.ranges(r, c)
	}
	out.check = plainCheck(m.codes, 0xff, scale)
	return out, nil
}

// int8BnBForm is LLM.int8() of bitsandbytes: w = q * SCB / 127, with a factor for each row.
var int8BnBForm = &Form{
	Name: "bnb_int8", Methods: []string{"bitsandbytes"},
	Codes: ".weight", Types: []string{"I8"}, Parts: []string{".SCB"},
	Becomes: "q8_0; scales are rounded to float16",
	build: func(_ *Settings, m *module) (*Matrix, error) {
		scale, ok := m.part(".SCB")
		rows, cols := m.codes.Shape[0], m.codes.Shape[1]
		if !ok || !scale.is(rows, "F32") {
			return nil, m.bad(".SCB", scale, ok, fmt.Sprintf("F32 [%d]", rows))
		}
		codes := m.codes.Data
		n := numbers{
			rows: rows, cols: cols, group: cols, code: func(r, c int) int { return int(int8(codes[r*cols+c])) },
			scale: func(r, _ int) float32 { return scale.float(r) / 127 },
		}
		out := n.matrix([]Part{*m.codes, *scale})
		out.ranges = func(part int, r, c span) (span, span) {
			if part == 0 {
				return r, c
			}
			return r, span{0, 1}
		}
		out.check = plainCheck(m.codes, 0xff, scale)
		return out, nil
	},
}
