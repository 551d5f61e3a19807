package quantform

import (
	"fmt"
	"slices"
	"sync/atomic"
)

// Block is the number of neighbours in a row that Codes returns.
const Block = 32

// Matrix is a matrix in a published form. It may be read concurrently.
type Matrix struct {
	Form       *Form
	Rows, Cols int
	Parts      []Part // all stored tensors that its elements depend on

	// Row writes elements from column lo on of row r.
	Row func(dst []float32, r, lo int)

	// Codes, if not nil, writes the elements of the 32 columns from lo on, a multiple of 32, as integers
	// with one scale: element i is float32(q[i]-zero) * scale, rounded once. Columns beyond the last have
	// the code zero. It returns false for a block with several scales.
	Codes func(q *[Block]int16, r, lo int) (zero int16, scale float32, ok bool)

	// ranges lists the elements of each part that rows and columns need, as rows and columns of the
	// part; nil: all of it.
	ranges func(part int, rows, cols span) (r, c span)

	check func() (notFinite int64, zero bool)

	damage atomic.Int64 // a row with an element that is not finite, plus 1
}

type span struct{ lo, hi int }

// per returns the span of groups of n that a span touches.
func (s span) per(n int) span { return span{s.lo / n, (s.hi + n - 1) / n} }

// words returns the span of 32-bit words that codes of some bits are in.
func (s span) words(bits int) span { return span{s.lo * bits / 32, (s.hi*bits + 31) / 32} }

// Bytes lists the ranges of bytes of a part that rows [r0, r1) and columns [c0, c1) need.
func (m *Matrix) Bytes(part, r0, r1, c0, c1 int) [][2]int {
	p := &m.Parts[part]
	if m.ranges == nil || len(p.Shape) != 2 {
		return [][2]int{{0, len(p.Data)}}
	}
	r, c := m.ranges(part, span{r0, r1}, span{c0, c1})
	size, cols := width(p.Stored), p.Shape[1]
	r, c = span{min(r.lo, p.Shape[0]), min(r.hi, p.Shape[0])}, span{min(c.lo, cols), min(c.hi, cols)}
	if c.lo == 0 && c.hi == cols {
		return [][2]int{{r.lo * cols * size, r.hi * cols * size}}
	}
	var out [][2]int
	for i := r.lo; i < r.hi; i++ {
		out = append(out, [2]int{(i*cols + c.lo) * size, (i*cols + c.hi) * size})
	}
	return out
}

// Check reads all scales. It returns the number of them that are not finite, and whether all codes
// or all scales are zero.
func (m *Matrix) Check() (notFinite int64, zero bool) { return m.check() }

// Observe looks for elements of row r that are not finite, for Damaged.
func (m *Matrix) Observe(r int, row []float32) {
	for _, v := range row {
		if v-v != 0 {
			m.damage.Store(int64(r) + 1)
			return
		}
	}
}

// Damaged returns a row in which Observe found an element that is not finite.
func (m *Matrix) Damaged() (row int, found bool) {
	n := m.damage.Load()
	return int(n) - 1, n > 0
}

// plainCheck returns the check of forms whose codes are numbers around zero: bits of a byte of codes that
// are not in mask do not count.
func plainCheck(codes *Part, mask byte, scales ...*Part) func() (int64, bool) {
	return func() (bad int64, zero bool) {
		for _, s := range scales {
			n, none := s.notFinite()
			bad, zero = bad+n, zero || none
		}
		return bad, zero || !slices.ContainsFunc(codes.Data, func(b byte) bool { return b&mask != 0 })
	}
}

func shape(s []int) string { return fmt.Sprint(s) }
