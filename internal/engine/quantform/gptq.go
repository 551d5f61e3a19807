package quantform

import "fmt"

// gptqForm is the form of GPTQ (arXiv 2210.17323) as AutoGPTQ and GPTQModel store it: w = (q - z) * scale.
// Codes are a stream of bits along the columns: word i of a column of qweight continues word i-1.
// Zero points are the same along the rows of w. Format 1 stores z-1, format 2 (gptq_v2) z. g_idx is
// the group of each column (act-order); without it, groups are neighbours.
var gptqForm = &Form{
	Name: "gptq", Methods: []string{"gptq", "auto-round"},
	Codes: ".qweight", Types: []string{"I32"}, Parts: []string{".scales", ".qzeros", ".g_idx"},
	Becomes: "int4 up to 4 bits, exact; q8_0 for 8 bits, and with act-order, which is not exact",
	build:   buildGPTQ,
}

func buildGPTQ(s *Settings, m *module) (*Matrix, error) {
	scale, ok := m.part(".scales")
	rows := m.codes.Shape[1]
	if !ok || len(scale.Shape) != 2 || scale.Shape[0] < 1 || scale.Shape[1] != rows || !scale.typed(floats...) {
		return nil, m.bad(".scales", scale, ok, fmt.Sprintf("F16 [groups %d]", rows))
	}
	count := scale.Shape[0]
	zero, ok := m.part(".qzeros")
	bits := 0
	if ok && len(zero.Shape) == 2 && rows > 0 { // modules may have bits of their own
		bits = zero.Shape[1] * 32 / rows
	}
	if bits != 2 && bits != 3 && bits != 4 && bits != 8 {
		bits = s.Bits
	}
	if !ok || !zero.shaped(count, (rows*bits+31)/32, "I32") {
		return nil, m.bad(".qzeros", zero, ok, fmt.Sprintf("I32 %v", []int{count, (rows*bits + 31) / 32}))
	}
	cols := m.codes.Shape[0] * 32 / bits
	if m.codes.Shape[0]*32%bits != 0 || cols%count != 0 && m.parts[".g_idx"] == nil {
		return nil, &Error{Tensor: m.codes.Name, Kind: ErrMismatch,
			Detail: fmt.Sprintf("is %s: %d columns of %d bits are not %d groups", m.codes, cols, bits, count)}
	}
	bias := 1
	if s.Plain {
		bias = 0
	}
	n := numbers{
		rows: rows, cols: cols, group: max(1, cols/count),
		code:  func(r, c int) int { return bitField(m.codes, r, rows, c*bits, bits) },
		zero:  func(r, k int) int { return (bitField(zero, k*zero.Shape[1], 1, r*bits, bits) + bias) & (1<<bits - 1) },
		scale: func(r, k int) float32 { return scale.float(k*rows + r) },
	}
	parts := []Part{*m.codes, *scale, *zero}
	all := false
	if index, ok := m.part(".g_idx"); ok {
		of, err := groupIndex(index, cols, count)
		if err != nil {
			return nil, err
		}
		n.of, all, parts = of, of != nil, append(parts, *index)
	}
	out := n.matrix(parts)
	out.ranges = func(part int, r, c span) (span, span) {
		if part == 0 {
			return c.words(bits), r
		}
		k := c.per(n.group)
		if all {
			k = span{0, count}
		}
		if part == 1 {
			return k, r
		}
		return k, r.words(bits)
	}
	out.check = scale.notFinite
	return out, nil
}
