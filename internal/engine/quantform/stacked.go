package quantform

import (
	"fmt"

	"github.com/shoal-llm/shoal/internal/engine/gguf/dequant"
)

// Slice is one matrix in a stack (experts, rows, columns): rows First, First+Each and so on of an expert, or
// columns of it if Turned.
type Slice struct {
	Expert, First, Each, Rows int
	Turned                    bool
}

// StackedScales are the endings of the names of a stack's scales.
var StackedScales = []string{"_scale_inv", "_scale"}

// StackedFP8 reports whether a tensor is a stack of matrices in FP8.
func StackedFP8(p Part) bool { return p.Stored == "F8_E4M3" && len(p.Shape) == 3 }

// Unstack returns one matrix of a stack in FP8. Scales have the shape (experts, m, n). Each belongs to a block
// of the size in the settings, or else of rows/m x columns/n elements. FBGEMM has a scale for each column, in
// either order.
func (s *Settings) Unstack(codes, scale Part, at Slice) (*Matrix, error) {
	experts, rows, cols := codes.Shape[0], codes.Shape[1], codes.Shape[2]
	fail := func(want string) error {
		return &Error{Tensor: scale.Name, Kind: ErrMismatch, Detail: "is " + scale.String() + "; " + codes.Name +
			" of shape " + shape(codes.Shape) + " requires " + want}
	}
	if len(scale.Shape) != 3 || scale.Shape[0] != experts || !scale.typed(scaleTypes...) {
		return nil, fail(fmt.Sprintf("F32 [%d m n]", experts))
	}
	m, n, block := scale.Shape[1], scale.Shape[2], s.FP8Block
	switch {
	case block != [2]int{} && (m != (rows+block[0]-1)/block[0] || n != (cols+block[1]-1)/block[1]):
		return nil, fail(fmt.Sprintf("F32 %v for blocks of %v",
			[]int{experts, (rows + block[0] - 1) / block[0], (cols + block[1] - 1) / block[1]}, block))
	case block != [2]int{}:
	case at.Turned && m*n == cols: // FBGEMM
		m, n, block = 1, cols, [2]int{rows, 1}
	case m > 0 && n > 0 && rows%m == 0 && cols%n == 0:
		block = [2]int{rows / m, cols / n}
	default:
		return nil, fail("numbers of scales that divide it")
	}
	data, first := codes.Data[at.Expert*rows*cols:(at.Expert+1)*rows*cols], at.Expert*m*n
	width := cols
	if at.Turned {
		width = rows
	}
	out := &Matrix{Form: fp8Form, Rows: at.Rows, Cols: width, Parts: []Part{codes, scale}}
	out.Row = func(dst []float32, r, lo int) {
		for i := range dst {
			row, col := at.First+r*at.Each, lo+i
			if at.Turned {
				row, col = col, row
			}
			dst[i] = dequant.E4M3[data[row*cols+col]] * scale.float(first+row/block[0]*n+col/block[1])
		}
	}
	out.check = fp8Check(data, &scale)
	return out, nil
}
