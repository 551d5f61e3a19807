package quantform

import "fmt"

// awqForm is the form of AWQ (arXiv 2306.00978) as AutoAWQ stores it for its gemm kernel: w = (q - z) *
// scale with 4 bits. The matrix is transposed. A word has eight neighbouring rows of w, in the order
// of awqShift. Without qzeros, z is 8.
var awqForm = &Form{
	Name: "awq", Methods: []string{"awq"},
	Codes: ".qweight", Types: []string{"I32"}, Parts: []string{".scales", ".qzeros"},
	Becomes: "int4, exact",
	build:   buildAWQ,
}

// awqShift is the position of each of eight rows in a word.
var awqShift = func() (at [8]int) {
	for i, row := range [8]int{0, 2, 4, 6, 1, 3, 5, 7} {
		at[row] = 4 * i
	}
	return at
}()

func buildAWQ(_ *Settings, m *module) (*Matrix, error) {
	cols, words := m.codes.Shape[0], m.codes.Shape[1]
	rows := 8 * words
	scale, ok := m.part(".scales")
	if !ok || len(scale.Shape) != 2 || scale.Shape[0] < 1 || scale.Shape[1] != rows || !scale.typed(floats...) {
		return nil, m.bad(".scales", scale, ok, fmt.Sprintf("F16 [groups %d]", rows))
	}
	count := scale.Shape[0]
	if cols%count != 0 {
		return nil, &Error{Tensor: m.codes.Name, Kind: ErrMismatch,
			Detail: fmt.Sprintf("is %s: %d columns are not %d groups", m.codes, cols, count)}
	}
	nibble := func(p *Part, i, r int) int { return int(p.word(i*words+r/8)>>awqShift[r%8]) & 15 }
	n := numbers{
		rows: rows, cols: cols, group: cols / count,
		code:  func(r, c int) int { return nibble(m.codes, c, r) },
		zero:  func(int, int) int { return 8 },
		scale: func(r, k int) float32 { return scale.float(k*rows + r) },
	}
	parts := []Part{*m.codes, *scale}
	if zero, ok := m.part(".qzeros"); ok {
		if !zero.shaped(count, words, "I32") {
			return nil, m.bad(".qzeros", zero, ok, fmt.Sprintf("I32 %v", []int{count, words}))
		}
		n.zero = func(r, k int) int { return nibble(zero, k, r) }
		parts = append(parts, *zero)
	}
	out := n.matrix(parts)
	out.ranges = func(part int, r, c span) (span, span) {
		switch part {
		case 0:
			return c, r.per(8)
		case 1:
			return c.per(n.group), r
		}
		return c.per(n.group), r.per(8)
	}
	out.check = scale.notFinite
	return out, nil
}
