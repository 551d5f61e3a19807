package quantform

import (
	"encoding/binary"
	"fmt"
)

// packedForm is pack-quantized of compressed-tensors (W4A16, W8A16): w = (q - z) * scale. A row of
// weight_packed is a stream of bits, low bits first. Codes and zero points are
// stored without sign: plus 2^(bits-1). Zero points are packed along the rows.
var packedForm = &Form{
	Name: "int_packed", Methods: []string{"compressed-tensors"},
	Codes: ".weight_packed", Types: []string{"I32"}, Parts: []string{".weight_scale", ".weight_shape", ".weight_zero_point", ".weight_g_idx"},
	Becomes: "int4 up to 4 bits, else q8_0; exact if scales are exact in float16",
	build:   buildPacked,
}

func buildPacked(_ *Settings, m *module) (*Matrix, error) {
	size, ok := m.part(".weight_shape")
	if !ok || !size.is(2, "I64", "I32") {
		return nil, m.bad(".weight_shape", size, ok, "I64 [2]")
	}
	dim := func(i int) int64 {
		if size.Stored == "I32" {
			return int64(int32(size.word(i)))
		}
		return int64(binary.LittleEndian.Uint64(size.Data[8*i:]))
	}
	rows, words := m.codes.Shape[0], m.codes.Shape[1]
	if dim(0) != int64(rows) || dim(1) < 1 || dim(1) > int64(words)*32 {
		return nil, &Error{Tensor: m.name + ".weight_shape", Kind: ErrMismatch,
			Detail: fmt.Sprintf("is [%d %d]; %s has shape %v", dim(0), dim(1), m.codes.Name, m.codes.Shape)}
	}
	cols := int(dim(1))
	bits := 0
	for _, b := range []int{8, 4, 2, 1, 3, 5, 6, 7} {
		if (cols*b+31)/32 == words {
			bits = b
			break
		}
	}
	if bits == 0 {
		return nil, &Error{Tensor: m.codes.Name, Kind: ErrUnsupported,
			Detail: fmt.Sprintf("has %d words for %d columns; want 1 to 8 bits each", words, cols)}
	}
	scale, ok := m.part(".weight_scale")
	g, good := groupsOf(scale, rows, cols)
	if !ok || !good {
		return nil, m.bad(".weight_scale", scale, ok, fmt.Sprintf("a scale, [%d 1], or one for each group of the %d columns", rows, cols))
	}
	n := numbers{
		rows: rows, cols: cols, group: g.group, code: func(r, c int) int { return bitField(m.codes, r*words, 1, c*bits, bits) },
		zero:  func(int, int) int { return 1 << (bits - 1) },
		scale: func(r, k int) float32 { return scale.float(g.at(r, k)) },
	}
	parts := []Part{*m.codes, *scale, *size}
	zeros, index := -1, -1
	if zero, ok := m.part(".weight_zero_point"); ok {
		if want := (rows*bits + 31) / 32; !g.rows || !zero.shaped(want, g.count, "I32") {
			return nil, m.bad(".weight_zero_point", zero, ok, fmt.Sprintf("I32 %v", []int{want, g.count}))
		}
		n.zero = func(r, k int) int { return bitField(zero, k, g.count, r*bits, bits) }
		zeros, parts = len(parts), append(parts, *zero)
	}
	if at, ok := m.part(".weight_g_idx"); ok {
		of, err := groupIndex(at, cols, g.count)
		if err != nil {
			return nil, err
		}
		n.of, index, parts = of, len(parts), append(parts, *at)
	}
	out := n.matrix(parts)
	out.ranges = func(part int, r, c span) (span, span) {
		switch {
		case part == 0:
			return r, c.words(bits)
		case part == 1 && index >= 0:
			return r, span{0, g.count}
		case part == zeros && index >= 0:
			return r.words(bits), span{0, g.count}
		case part == zeros:
			_, k := g.ranges(r, c)
			return r.words(bits), k
		}
		return g.ranges(r, c)
	}
	out.check = scale.notFinite
	return out, nil
}

// groupIndex returns the group of each column (act-order). It returns nil if the groups are neighbours of
// equal size.
func groupIndex(p *Part, cols, count int) (func(c int) int, error) {
	if !p.is(cols, "I32") {
		return nil, &Error{Tensor: p.Name, Kind: ErrMismatch, Detail: fmt.Sprintf("is %s; want I32 [%d]", p, cols)}
	}
	index, plain, used := make([]int32, cols), cols%count == 0, false
	for i := range index {
		index[i] = int32(p.word(i))
		if index[i] == -1 && !used {
			continue // compressed-tensors fills an unused index with -1
		}
		used = true
		if index[i] < 0 || int(index[i]) >= count {
			return nil, &Error{Tensor: p.Name, Kind: ErrOutOfRange, Detail: fmt.Sprintf("column %d is in group %d of %d", i, index[i], count)}
		}
		plain = plain && int(index[i]) == i/(cols/count)
	}
	if plain || cols > 0 && index[cols-1] == -1 {
		return nil, nil
	}
	if index[0] == -1 {
		return nil, &Error{Tensor: p.Name, Kind: ErrOutOfRange, Detail: fmt.Sprintf("column 0 is in group -1 of %d", count)}
	}
	return func(c int) int { return int(index[c]) }, nil
}
