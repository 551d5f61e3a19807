package quantform

// numbers are integers with a scale, and perhaps a zero point, for each group of columns of a row:
// element c of row r is (code - zero) * scale.
type numbers struct {
	rows, cols int
	group      int                    // columns of a group; the last one may be smaller
	of         func(c int) int        // the group of a column, if groups are not neighbours; nil: c/group
	code       func(r, c int) int     // within ±255
	zero       func(r, k int) int     // of group k; nil: 0
	scale      func(r, k int) float32 // of group k
}

func (n numbers) matrix(parts []Part) *Matrix {
	m := &Matrix{Rows: n.rows, Cols: n.cols, Parts: parts}
	of := n.of
	if of == nil {
		of = func(c int) int { return c / n.group }
	}
	m.Row = func(dst []float32, r, lo int) {
		k, scale, zero := -1, float32(0), 0
		for i := range dst {
			c := lo + i
			if g := of(c); g != k {
				k, scale, zero = g, n.scale(r, g), 0
				if n.zero != nil {
					zero = n.zero(r, g)
				}
			}
			dst[i] = float32(n.code(r, c)-zero) * scale
		}
	}
	m.Codes = func(q *[Block]int16, r, lo int) (int16, float32, bool) {
		hi, k, zero := min(lo+Block, n.cols), of(lo), int16(0)
		if n.zero != nil {
			zero = int16(n.zero(r, k))
		}
		for i := range q {
			if q[i] = zero; lo+i < hi {
				q[i] = int16(n.code(r, lo+i))
				if of(lo+i) != k {
					return 0, 0, false
				}
			}
		}
		return zero, n.scale(r, k), true
	}
	return m
}

// groups is the layout of scales, one for a row and a group of columns.
type groups struct {
	rows  bool // each row has its own
	count int  // groups of a row
	group int  // columns of a group
}

func (g groups) at(r, k int) int {
	if !g.rows {
		return k
	}
	return r*g.count + k
}

func (g groups) ranges(r, c span) (span, span) {
	if !g.rows {
		return span{0, 1}, span{0, 1}
	}
	return r, c.per(g.group)
}

// groupsOf reads the shape of scales: one for the matrix, (rows), (rows, 1), or (rows, groups), where
// groups of equal size divide the columns.
func groupsOf(scale *Part, rows, cols int) (groups, bool) {
	switch {
	case scale.is(1, floats...):
		return groups{count: 1, group: max(1, cols)}, true
	case scale.is(rows, floats...) && scale.Shape[0] == rows:
		return groups{rows: true, count: 1, group: max(1, cols)}, true
	case len(scale.Shape) == 2 && scale.Shape[0] == rows && scale.Shape[1] > 0 && scale.typed(floats...):
		n := scale.Shape[1]
		if group := cols / n; group > 0 && cols%n == 0 {
			return groups{rows: true, count: n, group: group}, true
		}
	}
	return groups{}, false
}

// bitField returns the number of some bits from bit at on of a stream of words. The first word is first, and
// the next one step further.
func bitField(p *Part, first, step, at, bits int) int {
	i, shift := at/32, at%32
	v := p.word(first+i*step) >> shift
	if shift+bits > 32 {
		v |= p.word(first+(i+1)*step) << (32 - shift)
	}
	return int(v & (1<<bits - 1))
}
